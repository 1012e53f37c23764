"""A hydra application: a configuration, a folder and a log file for each job of a multirun."""

import logging
import os
import random
from dataclasses import dataclass, field

import hydra
import numpy as np
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import OmegaConf

log = logging.getLogger(__name__)


@dataclass
class Config:
    model: dict = field(
        default_factory=lambda: {"_target_": "torch.nn.Linear", "in_features": 8, "out_features": 1}
    )
    optimizer: dict = field(
        default_factory=lambda: {"_target_": "torch.optim.Adam", "_partial_": True, "lr": 0.01}
    )
    seed: int = 0
    steps: int = 5


ConfigStore.instance().store(name="config", node=Config)


@hydra.main(version_base=None, config_name="config")
def main(config):
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)
    model = instantiate(config.model)
    optimizer = instantiate(config.optimizer)(model.parameters())
    for step in range(config.steps):
        x = torch.randn(32, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.5f", step, loss.item())
    folder = HydraConfig.get().runtime.output_dir
    torch.save(model.state_dict(), os.path.join(folder, "weights.pt"))
    print("threads", torch.get_num_threads())
    print("job", HydraConfig.get().job.override_dirname, sorted(os.listdir(folder)))
    print(OmegaConf.to_yaml(config.optimizer).split())
    return loss.item()


if __name__ == "__main__":
    main()
