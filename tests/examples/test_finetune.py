"""examples/finetune: packed text, accumulation, LoRA and three mesh axes, as in plain torch."""

import numpy as np
import pytest
import torch

from tests.examples.plain_torch import EXAMPLES, load_example, train_jaxsr, train_plain

SMALL = {"batch": 8, "steps": 3, "length": 32, "layers": 1}
SMALL |= {"schedule": "constant", "warmup_steps": 0}


@pytest.fixture
def task(needs):
    needs("transformers")
    return load_example("finetune").Text


@pytest.mark.parametrize(
    ("mesh", "accumulate", "lora"),
    [("1", 1, 0), ("data=2,fsdp=2,tensor=2", 2, 0), ("data=2,fsdp=2,tensor=2", 2, 4)],
)
def test_the_same_losses(task, mesh, accumulate, lora):
    options = {"mesh": mesh, "accumulate": accumulate}
    expected, network = train_plain(task, task.Config(**SMALL, lora=lora), 3)
    losses, weights = train_jaxsr(task, task.Config(**SMALL, lora=lora, **options))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)  # float32 sums in another order
    for name, tensor in network.state_dict().items():
        # Adam moves a weight by up to 3e-3 a step; rounding turns into a part of that.
        np.testing.assert_allclose(weights[name], tensor.numpy(), atol=1e-3, err_msg=name)


def test_documents_do_not_see_one_another(task):
    torch.manual_seed(0)
    user = task(task.Config(length=16))
    network = user.network().eval()
    documents = torch.tensor([[0] * 7 + [1] * 9])
    position = torch.tensor([[*range(7), *range(9)]])
    tokens = torch.randint(0, 256, (2, 1, 16))
    tokens[1, :, 7:] = tokens[0, :, 7:]

    def second_document(token):
        batch = {"token": token, "document": documents, "position": position}
        seen = {}
        network.register_forward_hook(lambda *call: seen.update(logits=call[2].logits))
        user.loss(network, batch)
        return seen["logits"][:, 7:]

    torch.testing.assert_close(second_document(tokens[0]), second_document(tokens[1]))


def test_rows_hold_every_token_in_order(task):
    user = task(task.Config())
    train, held_out = user.train_data(), user.validation_data()
    count = len(train["token"]) + len(held_out["token"])
    tokens = np.empty((count, 128), np.uint8)
    tokens[9::10] = held_out["token"]
    tokens[np.arange(count) % 10 < 9] = train["token"]
    text = b"".join(path.read_bytes() for path in sorted((EXAMPLES.parent / "docs").glob("*.md")))
    assert tokens.tobytes() == text[: tokens.size]
    begins = np.diff(train["document"], axis=1, prepend=-1) != 0
    assert (train["position"][begins] == 0).all()
    assert (np.diff(train["position"], axis=1)[~begins[:, 1:]] == 1).all()
