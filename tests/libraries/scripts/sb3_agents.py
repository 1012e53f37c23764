"""Agents of stable-baselines3 that learn on small environments."""

import hashlib
import io

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


class Dot(gym.Env):
    """A picture with a dot that must be brought to the left edge."""

    observation_space = spaces.Box(0, 255, (1, 36, 36), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = int(self.np_random.integers(4, 32)), 0
        return self.picture(), {}

    def step(self, action):
        self.at += 4 if action else -4
        self.steps += 1
        over = self.at <= 3 or self.at >= 32
        return self.picture(), float(self.at <= 3), over, self.steps >= 10, {}

    def picture(self):
        picture = np.zeros((1, 36, 36), np.uint8)
        picture[0, 16:20, max(0, self.at - 2) : self.at + 2] = 255
        return picture


def show(name, model, env):
    reward, spread = evaluate_policy(model, env, n_eval_episodes=3, warn=False)
    print(name, "reward", reward, spread, model.num_timesteps)
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    again = type(model).load(file, env=env, device="cpu")
    total = sum(p.double().abs().sum().item() for p in again.policy.parameters())
    print(name, "policy", total, again.n_updates if hasattr(again, "n_updates") else "")


env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
ppo = PPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=3, seed=0, device="cpu")
ppo.learn(256)
for key in ("train/loss", "train/approx_kl", "train/value_loss"):
    print("ppo", key, float(ppo.logger.name_to_value.get(key, 0)))
show("ppo", ppo, env)

dqn = DQN(
    "CnnPolicy", Dot(), buffer_size=300, learning_starts=50, train_freq=4, batch_size=16,
    target_update_interval=50, seed=1, device="cpu",
)  # fmt: skip
dqn.learn(200, log_interval=1000)
print("dqn loss", float(dqn.logger.name_to_value.get("train/loss", 0)))
show("dqn", dqn, dqn.get_env())

sac = SAC("MlpPolicy", "Pendulum-v1", learning_starts=50, batch_size=32, seed=2, device="cpu")
sac.learn(120)
show("sac", sac, sac.get_env())
print("random", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
print("numpy", hashlib.sha256(np.random.get_state()[1].tobytes()).hexdigest())
