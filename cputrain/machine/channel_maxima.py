"""Number of memory channels per socket, for processor models where it is certain.

A channel is 64 data bits wide; the 16- or 32-bit channels of LPDDR are converted. The numbers are
the vendors' (ark.intel.com, amd.com). Family and model identify the die; where one die is sold with
different numbers of channels, the model name decides. Where that does not either, the number is
None.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

# Models of Intel family 6, as in Linux's arch/x86/include/asm/intel-family.h
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
    """Return the memory channels per socket of a processor model; None if uncertain.

    Args:
        vendor: CPUID vendor, such as "AuthenticAMD".
        family: x86 family.
        model: x86 model.
        model_name: Marketing name, in any case and with or without "(R)".
    """
    name = " ".join(model_name.upper().replace("(R)", " ").replace("(TM)", " ").split())
    if vendor == "AuthenticAMD":
        return _amd(family, model, name)
    if vendor == "GenuineIntel":
        return _intel(family, model, name)
    return _arm(name)


def _match(pattern: str, name: str) -> re.Match[str] | None:
    """Search a model name without case: there are "XEON(R) PLATINUM 8592+" and "Xeon(R) Gold"."""
    import re

    return re.search(pattern, name, re.IGNORECASE)


def _amd(family: int | None, model: int | None, name: str) -> int | None:
    if _match("Threadripper", name):
        return 8 if _match(r"\bPRO\b", name) else 4
    # EPYC models that end in H have HBM
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
        return 8  # Naples, Rome and Milan, including their F, H and cloud models
    if series == "9" and generation in "45":
        return 12  # Genoa, Bergamo, Turin
    if series == "8" and generation == "4":
        return 6
    if series == "4" and generation in "45":
        return 2
    if series == "3" and third in "05" and generation == "1":
        return 4 if tier in "34" else 2  # 33xx and 34xx have two dies
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
        return 4 if _match(r"\bCore i7-", name) else None  # E7 has buffers between CPU and memory
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
        number = _match(r"\bXeon (?:CPU )?6([579])\d\d[PE]", name)
        return None if number is None else 12 if number[1] == "9" else 8
    if model == _ALDER_LAKE_N:
        return 1
    desktop = r"\bCore (i[3579]-|Ultra \d|[3579] )|\bXeon (CPU )?(E3-|E-2)"
    # Before Sandy Bridge (0x2A) some Core i7 have three channels.
    return 2 if _match(desktop, name) and model >= 0x2A and model != _LAKEFIELD else None


def _arm(name: str) -> int | None:
    """Return the channels of an Arm system-on-chip with a known name; core names do not suffice.

    Neoverse N1, for example, is in Altra, Graviton2 and others.
    """
    channels_by_name = {"Graviton2": 8, "Graviton3": 8, "Graviton4": 12, "Altra": 8}
    return next(
        (channels for part, channels in channels_by_name.items() if _match(part, name)), None
    )
