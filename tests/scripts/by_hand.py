"""No loader and no optimizer of torch: batches by index, an update by hand, a fit() method."""

import numpy as np
import torch


class MLPRegressor:
    def __init__(self, hidden=(32, 16), learning_rate=0.05, max_iter=8, batch_size=32, seed=0):
        self.hidden = hidden
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.rng = np.random.default_rng(seed)

    def fit(self, X, y):
        sizes = (X.shape[1], *self.hidden, 1)
        self.coefs_ = [
            torch.tensor(self.rng.normal(0, 1 / n, (n, m)), dtype=torch.float32).requires_grad_()
            for n, m in zip(sizes[:-1], sizes[1:], strict=True)
        ]
        X, y = torch.from_numpy(X).float(), torch.from_numpy(y).float()
        for _ in range(self.max_iter):
            total = 0.0
            order = self.rng.permutation(len(X))
            for begin in range(0, len(X), self.batch_size):
                batch = torch.from_numpy(order[begin : begin + self.batch_size])
                loss = (self._forward(X[batch]) - y[batch]).pow(2).mean()
                loss.backward()
                with torch.no_grad():
                    for w in self.coefs_:
                        w -= self.learning_rate * w.grad
                        w.grad.zero_()
                total += loss.item()
            print(f"loss {total}")
        return self

    def _forward(self, X):
        for w in self.coefs_[:-1]:
            X = torch.tanh(X @ w)
        return (X @ self.coefs_[-1]).squeeze(1)

    def score(self, X, y):
        with torch.no_grad():
            out = self._forward(torch.from_numpy(X).float()).numpy()
        return 1 - ((out - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()


rng = np.random.default_rng(1)
X = rng.normal(size=(256, 8))
y = np.sin(X[:, 0]) + X[:, 1]
model = MLPRegressor().fit(X, y)
print(f"loss {model.score(X, y)}")
np.savez("weights.npz", *[w.detach().numpy() for w in model.coefs_])
