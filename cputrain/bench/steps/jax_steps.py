"""Steps of a network by JAX and Optax, in an environment that has them.

    PYTHON jax_steps.py FILE

is a script by itself: it imports nothing of cputrain. The file has the parameters of a network, a
batch, and the names of activation and loss. The first line that is printed are the losses of the
first steps. Then each line of standard input has steps taken for so many seconds, and the time of
one of them is printed.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NUM_COMPARED = 20


def main(path: str) -> None:
    """Take steps of the network in a file, as standard input says."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    file = np.load(path)
    activation = jnp.tanh if str(file["activation"]) == "Tanh" else jax.nn.relu
    has_classes = str(file["loss"]) == "CrossEntropyLoss"
    inputs, targets = jnp.asarray(file["inputs"]), jnp.asarray(file["targets"])
    layers: list[list[Any]] = []
    while f"weight{len(layers)}" in file:
        number = len(layers)
        layers.append([jnp.asarray(file[f"{kind}{number}"]) for kind in ("weight", "bias")])

    def loss_of(layers: Any, inputs: Any, targets: Any) -> Any:
        for weight, bias in layers[:-1]:
            inputs = activation(inputs @ weight.T + bias)
        outputs = inputs @ layers[-1][0].T + layers[-1][1]
        if has_classes:
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs, targets)
            return losses.mean()
        return ((outputs - targets) ** 2).mean()

    optimizer = optax.adam(3e-4)

    def step(layers: Any, state: Any, inputs: Any, targets: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(layers, inputs, targets)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(layers, updates), state, loss

    compiled = jax.jit(step, donate_argnums=(0, 1))
    state = optimizer.init(layers)
    losses = []
    for _ in range(NUM_COMPARED):
        layers, state, loss = compiled(layers, state, inputs, targets)
        losses.append(float(loss))
    print(*losses, flush=True)
    for line in sys.stdin:
        begin, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - begin) < float(line):
            layers, state, loss = compiled(layers, state, inputs, targets)
            loss.block_until_ready()
            count += 1
        print(elapsed / count, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
