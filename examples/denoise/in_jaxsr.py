"""The same training run by jaxsr: on any number of TPU, GPU or CPU devices, resumable.

cd examples/denoise && python -m jaxsr.train in_jaxsr:Denoising --mesh 8
"""

from in_torch import Denoiser, batch_of
from torch.nn import functional as F

import jaxsr


class Denoising(jaxsr.Task):
    """The lines between `zero_grad` and `backward`, the data, and defaults of the options."""

    class Config(jaxsr.TaskConfig):
        steps = 60
        lr = 3e-3
        weight_decay = 1e-2
        width: int = 16
        """Channels of the network's hidden layer."""

    def network(self):
        return Denoiser(self.config.width)

    def loss(self, network, batch):
        return F.mse_loss(network(batch["noisy"]), batch["clean"])

    def train_data(self):
        return batch_of
