"""webdataset: shards of tar files, streamed, decoded, shuffled, batched in workers."""

import io
import os
import random
import tarfile

import numpy as np
import webdataset as wds
from batches import seed, show
from torch.utils.data import DataLoader


def write(folder):
    os.makedirs(folder, exist_ok=True)
    for shard in range(4):
        with tarfile.open(f"{folder}/shard-{shard:03}.tar", "w") as tar:
            for row in range(12):
                array = io.BytesIO()
                np.save(array, np.full((3, 4), 100 * shard + row, np.float32))
                label = str(row % 5).encode()
                for name, data in (("npy", array.getvalue()), ("cls", label)):
                    info = tarfile.TarInfo(f"{shard:03}{row:03}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def main():
    seed(0)
    write("shards")
    urls = "shards/shard-{000..003}.tar"

    def pipeline(**options):
        return wds.WebDataset(urls, empty_check=False, **options)

    plain = pipeline(shardshuffle=False).decode().to_tuple("npy", "cls")
    show("plain", DataLoader(plain, batch_size=6))
    show("workers", DataLoader(plain, batch_size=6, num_workers=2))
    batched = plain.batched(5)
    show("batched", DataLoader(batched, batch_size=None, num_workers=2))
    show("batched here", DataLoader(batched, batch_size=None))
    shuffled = pipeline(shardshuffle=4, seed=7).shuffle(8, rng=random.Random(3))
    shuffled = shuffled.decode("torch").to_tuple("npy", "cls")
    show("shuffled", DataLoader(shuffled, batch_size=4))
    loader = wds.WebLoader(batched, batch_size=None, num_workers=2).unbatched().batched(9)
    show("loader of theirs", loader)


if __name__ == "__main__":
    main()
