"""A grid search over networks of skorch, in processes of joblib."""

import hashlib
import os
import pickle
import sys
import warnings

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.datasets import make_classification
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring, LRScheduler
from torch import nn


class Net(nn.Module):
    def __init__(self, width=16, dropout=0.2):
        super().__init__()
        torch.manual_seed(width)  # whatever process this is
        self.layers = nn.Sequential(
            nn.Linear(20, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 2)
        )

    def forward(self, x):
        return self.layers(x)


def limits():
    """What a worker of joblib is told of threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return [os.environ.get(name) for name in names] + [torch.get_num_threads()]


if __name__ == "__main__":
    torch.manual_seed(0)
    x, y = make_classification(200, 20, n_informative=8, random_state=0)
    x, y = x.astype(np.float32), y.astype(np.int64)
    net = NeuralNetClassifier(
        Net, criterion=nn.CrossEntropyLoss, max_epochs=5, lr=0.05, optimizer=torch.optim.Adam,
        verbose=0, iterator_train__shuffle=True, callbacks=[
            EarlyStopping(patience=3),
            LRScheduler("StepLR", step_size=2),
            EpochScoring("f1_macro", lower_is_better=False),
            Checkpoint(dirname="skorch", load_best=True),
        ],
    )  # fmt: skip
    pipeline = make_pipeline(StandardScaler(), net)
    pipeline.fit(x, y)
    for row in net.history:
        print("epoch", row["epoch"], row["train_loss"], row["valid_loss"], row["f1_macro"])
    print("score", accuracy_score(y, pipeline.predict(x)))
    again = pickle.loads(pickle.dumps(pipeline))
    print("same", bool((again.predict_proba(x) == pipeline.predict_proba(x)).all()))
    if "--alone" in sys.argv:
        sys.exit()
    plain = NeuralNetClassifier(
        Net, criterion=nn.CrossEntropyLoss, max_epochs=3, verbose=0, train_split=None,
        optimizer=torch.optim.SGD, lr=0.05,
    )  # fmt: skip
    search = GridSearchCV(plain, {"module__width": [8, 16], "lr": [0.01, 0.1]}, cv=2, n_jobs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(x, y)
    print("grid", search.best_params_, search.cv_results_["mean_test_score"].tolist())
    print("workers", Parallel(n_jobs=2)(delayed(limits)() for _ in range(2)))
    print("random", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
