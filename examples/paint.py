"""A network learns to paint a picture, and you watch it in the terminal.

The picture is kept as four grids of learned numbers, fine to coarse. A small network turns what
they hold at a pixel into its colour, so each step paints the whole picture and corrects it.

    python examples/paint.py
"""

import argparse
import math
import time

import torch
from rich.color import Color
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.style import Style
from rich.text import Text
from torch import nn
from torch.nn.functional import interpolate, mse_loss

HEIGHT, WIDTH = 272, 496
FONT = {
    "H": "10001 10001 10001 11111 10001 10001 10001",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "O": "01110 10001 10001 10001 10001 10001 01110",
}


def colour(code: str) -> torch.Tensor:
    return torch.tensor([int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)])


def blend(below: torch.Tensor, above: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    return below + (above - below) * amount.clamp(0, 1)[..., None]


def sunset() -> torch.Tensor:
    """The picture to learn, (1, 3, HEIGHT, WIDTH), numbers from 0 to 1."""
    middle = WIDTH / HEIGHT / 2
    y, x = torch.meshgrid(
        torch.linspace(0, 1, HEIGHT), torch.linspace(0, 2 * middle, WIDTH), indexing="ij"
    )
    image = blend(colour("1b1464"), colour("c2185b"), y / 0.4)  # the sky
    image = blend(image, colour("ffb000"), (y - 0.35) / 0.3)
    distance = ((x - middle) ** 2 + (y - 0.52) ** 2).sqrt()
    image = blend(image, colour("ffd54f"), torch.exp(-6 * distance))  # the glow, then the sun
    image = blend(image, colour("fff6c8"), 100 * (0.2 - distance))
    far = 0.55 + 0.06 * torch.sin(5 * x) + 0.03 * torch.sin(13 * x + 1)
    image = blend(image, colour("6a1b6a"), 100 * (y - far))
    near = 0.62 + 0.07 * torch.sin(3.5 * x + 2.2) + 0.02 * torch.sin(17 * x)
    image = blend(image, colour("2d0b45"), 100 * (y - near))
    sea = blend(colour("0d2b6b"), colour("061338"), (y - 0.72) / 0.28)
    ripples = 0.5 + 0.5 * torch.sin(160 * y**1.5 + 4 * torch.sin(9 * x))
    ripples *= torch.exp(-(((x - middle) / (0.08 + 0.4 * (y - 0.72).clamp(min=0))) ** 2))
    image = blend(image, sea + ripples[..., None] * colour("e68d29"), 200 * (y - 0.72))
    image[((x - 0.33).abs() < 0.35 * (y - 0.5)) & (y < 0.74)] = colour("f5f5f5")  # the boat
    image[((x - 0.33).abs() < 0.9 - y) & (y > 0.76) & (y < 0.81)] = colour("d32f2f")
    dot = 8
    for place, letter in enumerate("HELLO"):
        for row, line in enumerate(FONT[letter].split()):
            for column, bit in enumerate(line):
                if bit == "1":
                    top, left = dot * (row + 2), WIDTH // 2 + dot * (6 * place + column) - 116
                    image[top : top + dot, left : left + dot] = 1
    return image.clamp(0, 1).permute(2, 0, 1)[None]


class Painter(nn.Module):
    """Four grids, one cell for every 2, 6, 16 and 48 pixels, and the network that reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.grids = nn.ParameterList(
            0.01 * torch.randn(1, 16, HEIGHT // cell, WIDTH // cell) for cell in (2, 6, 16, 48)
        )
        self.network = nn.Sequential(nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 3, 1))

    def forward(self) -> torch.Tensor:
        size = (HEIGHT, WIDTH)
        stretched = [interpolate(grid, size=size, mode="bilinear") for grid in self.grids]
        return self.network(torch.cat(stretched, dim=1))


def drawn(image: torch.Tensor, columns: int, colours: bool) -> Text:
    """The picture as text: two pixels in a character with colours, one shade without."""
    rows = round(columns * HEIGHT / WIDTH / 2)
    size = (2 * rows if colours else rows, columns)
    pixels = interpolate(image.detach().clamp(0, 1), size=size, mode="area")[0]
    if not colours:
        shades = (pixels.mean(0) * 9.99).int().tolist()
        return Text("\n".join("".join(" .:-=+*#%@"[shade] for shade in row) for row in shades))
    codes = (pixels * 255).round().int().permute(1, 2, 0).tolist()
    text = Text(no_wrap=True, end="")
    for upper, lower in zip(codes[::2], codes[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below)))
        text.append("\n")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30, help="how long to learn (default: 30)")
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    target = sunset()
    painter = Painter()
    groups = [
        {"params": painter.grids.parameters(), "lr": 0.2},
        {"params": painter.network.parameters(), "lr": 0.01},
    ]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)

    console = Console(highlight=False)
    colours = console.is_terminal and console.color_system is not None and not console.no_color
    columns = max(8, min(console.width, 2 * (console.height - 4) * WIDTH // HEIGHT, 120))
    shown = TextColumn("{task.fields[figures]}")
    bar = Progress(BarColumn(20), MofNCompleteColumn(), shown, TimeElapsedColumn())
    task = bar.add_task("", total=steps, figures="")
    begin = time.perf_counter()
    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        for step in range(1, steps + 1):
            painted = painter()
            loss = mse_loss(painted, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            psnr = -10 * math.log10(loss.item())
            speed = step / (time.perf_counter() - begin)
            if console.is_terminal:
                figures = f"loss {loss.item():.5f}  PSNR {psnr:.1f} dB  {speed:.2f} steps/s"
                bar.update(task, completed=step, figures=figures)
                live.update(Group(drawn(painted, columns, colours), bar), refresh=True)
            elif step % 5 == 0 or step == steps:
                console.print(f"step {step:3d}  loss {loss.item():.6f}  PSNR {psnr:.2f} dB")
    if not console.is_terminal:
        console.print(drawn(painted, 72, False))
    console.print(f"PSNR {psnr:.2f} dB, loss {loss.item():.9f}, {steps} steps, {speed:.2f} steps/s")


if __name__ == "__main__":
    main()
