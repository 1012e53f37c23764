"""Hugging Face datasets: Arrow tables as map-style and as streamed data sets."""

import tempfile

import datasets
import numpy as np
import torch
from batches import seed, show
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

datasets.disable_progress_bars()


def main():
    seed(0)
    rows = {
        "text": [f"sentence {row}" for row in range(60)],
        "label": [row % 3 for row in range(60)],
        "vector": np.arange(240, dtype=np.float32).reshape(60, 4).tolist(),
    }
    table = datasets.Dataset.from_dict(rows)
    columns = table.with_format("torch", columns=["label", "vector"])
    for workers in (0, 2):
        show(f"table {workers}", DataLoader(columns, batch_size=8, num_workers=workers))
        show(
            f"shuffled {workers}",
            DataLoader(columns, batch_size=8, shuffle=True, num_workers=workers, drop_last=True),
        )
    show("plain rows", DataLoader(table, batch_size=7, num_workers=2))
    show("numpy rows", DataLoader(table.with_format("numpy"), batch_size=7))
    mapped = table.map(lambda row: {"length": len(row["text"])}, keep_in_memory=True)
    chosen = mapped.filter(lambda row: row["label"] != 1, keep_in_memory=True).shuffle(seed=3)
    show("chosen", DataLoader(chosen.with_format("torch"), batch_size=5, num_workers=2))

    def twice(batch):
        return {"vector": [torch.tensor(vector) * 2 for vector in batch["vector"]]}

    show("transformed", DataLoader(table.with_transform(twice), batch_size=6, num_workers=2))
    stream = table.to_iterable_dataset(num_shards=4).shuffle(seed=5, buffer_size=20)
    show("stream", DataLoader(stream.with_format("torch"), batch_size=8, num_workers=2))
    show("stream here", DataLoader(stream.with_format("torch"), batch_size=8))
    node = split_dataset_by_node(table, rank=1, world_size=3).with_format("torch")
    show("a rank's", DataLoader(node, batch_size=4, shuffle=True))
    with tempfile.TemporaryDirectory() as folder:
        table.save_to_disk(folder)
        disk = datasets.load_from_disk(folder).with_format("torch")
        show("from disk", DataLoader(disk, batch_size=8, num_workers=2, persistent_workers=True))


if __name__ == "__main__":
    main()
