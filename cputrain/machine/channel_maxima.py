"""How many memory channels a processor has, for those of which it is known for certain.

A channel is 64 bits of data wide; processors with LPDDR, which count 16- or 32-bit channels, are
given here in such channels too. The numbers are the makers' (ark.intel.com, amd.com). Family and
model separate the dies; where one die is sold with different numbers of channels, the model name
decides, and where that does not either, nothing is claimed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

# Intel family 6; the numbers are those of arch/x86/include/asm/intel-family.h in Linux
_SANDY_TO_BROADWELL_EP = (0x2D, 0x3E, 0x3F, 0x4F)
_SKYLAKE_SP = 0x55
_BROADWELL_DE = 0x56
_ICELAKE_SP = 0x6A
_SAPPHIRE_RAPIDS = 0x8F
_EMERALD_RAPIDS = 0xCF
_GRANITE_RAPIDS = 0xAD
_SIERRA_FOREST = 0xAF
_ALDER_LAKE_N = 0xBE
_LAKEFIELD = 0x8A

# AMD
_DALI, _MENDOCINO = (0x17, 0x20), (0x17, 0xA0)
_STRIX_HALO = tuple((0x1A, model) for model in range(0x70, 0x78))


def channels_per_socket(
    vendor: str, family: int | None, model: int | None, model_name: str
) -> int | None:
    """The most memory channels that one such processor drives; None where that is not certain."""
    name = " ".join(model_name.upper().replace("(R)", " ").replace("(TM)", " ").split())
    if vendor == "AuthenticAMD":
        return _amd(family, model, name)
    if vendor == "GenuineIntel":
        return _intel(family, model, name)
    return _arm(name)


def _match(pattern: str, name: str) -> re.Match[str] | None:
    """Makers do not stay with one spelling: "XEON(R) PLATINUM 8592+", "RYZEN AI MAX+ 395"."""
    import re

    return re.search(pattern, name, re.IGNORECASE)


def _amd(family: int | None, model: int | None, name: str) -> int | None:
    if _match("Threadripper", name):
        return 8 if _match(r"\bPRO\b", name) else 4
    # not those that end in H, which carry HBM
    epyc = _match(r"\bEPYC (?:Embedded )?([3-9])(\w)(\w)(\w)(?!H)", name)
    if epyc:
        return _epyc(epyc[1], epyc[2], epyc[3], epyc[4])
    if _match(r"\bRyzen\b", name) and family in (0x17, 0x19, 0x1A) and model is not None:
        if (family, model) in _STRIX_HALO:
            return 4
        return None if (family, model) in (_DALI, _MENDOCINO) else 2
    return None


def _epyc(series: str, tier: str, third: str, generation: str) -> int | None:
    if series == "7":
        return 8  # Naples, Rome, Milan, and the F, H and cloud models among them
    if series == "9" and generation in "45":
        return 12  # Genoa, Bergamo, Turin
    if series == "8" and generation == "4":
        return 6
    if series == "4" and generation in "45":
        return 2
    if series == "3" and third in "05" and generation == "1":
        return 4 if tier in "34" else 2  # two dies or one
    return None


def _intel(family: int | None, model: int | None, name: str) -> int | None:
    if family != 6 or model is None:
        return None
    workstation = _match(r"\bXeon W-?(\d)(\d)\d\d|\bXeon w\d-(\d)(\d)\d\d", name)
    if workstation:
        thousands, hundreds = workstation[1] or workstation[3], workstation[2] or workstation[4]
        by_series = {"1": 2, "2": 4, "3": 6 if hundreds in "12" else 8}
        return by_series.get(thousands)
    if model in _SANDY_TO_BROADWELL_EP:
        if _match(r"\bE5-[124]6\d\d", name):
            return 4
        if _match(r"\bE5-[12]4\d\d", name):
            return 3
        return 4 if _match(r"\bCore i7-", name) else None  # E7: buffers in between
    if model == _SKYLAKE_SP:
        if _match(r"\bPlatinum 92\d\d", name):
            return 12
        if _match(r"\b(Bronze|Silver|Gold|Platinum) \d{4}", name):
            return 6
        return 4 if _match(r"\bCore i[79]-|\bXeon D-2", name) else None
    if model == _BROADWELL_DE:
        return 2 if _match(r"\bXeon (CPU )?D-15", name) else None
    if model in (_ICELAKE_SP, _SAPPHIRE_RAPIDS, _EMERALD_RAPIDS):
        return 8 if _match(r"\b(Bronze|Silver|Gold|Platinum|Max) \d{4}|\bMax\b", name) else None
    if model in (_GRANITE_RAPIDS, _SIERRA_FOREST):
        six = _match(r"\bXeon (?:CPU )?6([579])\d\d[PE]", name)
        return None if six is None else 12 if six[1] == "9" else 8
    if model == _ALDER_LAKE_N:
        return 1
    desktop = r"\bCore (i[3579]-|Ultra \d|[3579] )|\bXeon (CPU )?(E3-|E-2)"
    # before Sandy Bridge (0x2A) some Core i7 have three
    return 2 if _match(desktop, name) and model >= 0x2A and model != _LAKEFIELD else None


def _arm(name: str) -> int | None:
    """Cores alone do not tell: Neoverse N1 is in Altra, Graviton2 and more. Only names that do."""
    known = {"Graviton2": 8, "Graviton3": 8, "Graviton4": 12, "Altra": 8}
    return next((channels for part, channels in known.items() if _match(part, name)), None)
