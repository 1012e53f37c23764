"""h5py, lmdb, pandas, polars and PIL behind datasets written by hand."""

import io
import pickle

import h5py
import lmdb
import numpy as np
import pandas as pd
import polars as pl
import torch
from batches import seed, show
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, default_collate


class Hdf5(Dataset):
    """Opened in each worker, as its manual says."""

    def __init__(self, path):
        self.path = path
        self.file = None
        with h5py.File(path) as file:
            self.length = len(file["x"])

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        if self.file is None:
            self.file = h5py.File(self.path)
        return self.file["x"][row], int(self.file["y"][row])


class Lmdb(Dataset):
    def __init__(self, path):
        self.path = path
        self.environment = None

    def __len__(self):
        return 30

    def __getitem__(self, row):
        if self.environment is None:
            self.environment = lmdb.open(self.path, readonly=True, lock=False)
        with self.environment.begin() as transaction:
            return pickle.loads(transaction.get(str(row).encode()))


class Frame(Dataset):
    def __init__(self, frame, row_of):
        self.frame = frame
        self.row_of = row_of

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, row):
        return self.row_of(self.frame, row)


class Images(Dataset):
    def __init__(self):
        noise = np.random.default_rng(0)
        self.files = []
        for _ in range(16):
            buffer = io.BytesIO()
            pixels = noise.integers(0, 255, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(buffer, "PNG")
            self.files.append(buffer.getvalue())

    def __len__(self):
        return len(self.files)

    def __getitem__(self, row):
        image = Image.open(io.BytesIO(self.files[row])).convert("RGB").resize((32, 24))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.float().div_(255), row % 4


def collate_images(samples):
    images, labels = default_collate(samples)
    return {"images": images.to(memory_format=torch.channels_last), "labels": labels}


def every(name, dataset, **options):
    for workers in (0, 2):
        seed(1)
        show(f"{name} {workers}", DataLoader(dataset, num_workers=workers, **options))


def main():
    numbers = np.arange(30 * 6, dtype=np.float32).reshape(30, 6)
    with h5py.File("data.h5", "w") as file:
        file["x"], file["y"] = numbers, np.arange(30)
    every("hdf5", Hdf5("data.h5"), batch_size=7, shuffle=True)
    environment = lmdb.open("data.lmdb", map_size=1 << 20)
    with environment.begin(write=True) as transaction:
        for row in range(30):
            transaction.put(str(row).encode(), pickle.dumps((numbers[row], {"row": row})))
    environment.close()
    every("lmdb", Lmdb("data.lmdb"), batch_size=7)
    table = {"a": list(range(30)), "b": [row / 7 for row in range(30)], "c": ["x", "y"] * 15}
    frame = pd.DataFrame(table)
    every("pandas", Frame(frame, lambda f, row: f.iloc[row].to_dict()), batch_size=8)
    every(
        "pandas numbers",
        Frame(frame, lambda f, row: torch.tensor(f.iloc[row][["a", "b"]].to_numpy(np.float64))),
        batch_size=8,
        shuffle=True,
    )
    every("pandas values", Frame(frame[["a", "b"]].to_numpy(), lambda f, row: f[row]), batch_size=8)
    every("polars", Frame(pl.DataFrame(table), lambda f, row: f.row(row)), batch_size=8)
    every(
        "polars rows",
        Frame(pl.DataFrame(table), lambda f, row: f.row(row, named=True)),
        batch_size=8,
    )
    images = Images()
    every("images", images, batch_size=5, shuffle=True)
    every("some images", Subset(images, [3, 1, 9, 12, 3]), batch_size=2, collate_fn=collate_images)


if __name__ == "__main__":
    main()
