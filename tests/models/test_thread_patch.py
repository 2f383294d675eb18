"""Functions of torch that are replaced while a model is built, in one thread."""

import threading
import time

import torch
from torch import nn

from jaxsr.models.thread_patch import patched


def test_other_threads_keep_the_function_and_all_have_it_back_in_the_end():
    plain, devices = nn.Module.register_parameter, {}

    def on_meta(self, name, parameter):
        plain(self, name, nn.Parameter(parameter.to("meta")) if parameter is not None else None)

    def build(name, *, wait, hold):
        time.sleep(wait)
        with patched(nn.Module, register_parameter=on_meta):
            time.sleep(hold)
            devices[name] = nn.Linear(2, 2).weight.device.type

    first = threading.Thread(target=build, args=("first",), kwargs={"wait": 0, "hold": 0.3})
    second = threading.Thread(target=build, args=("second",), kwargs={"wait": 0.1, "hold": 0.3})
    first.start()
    second.start()
    time.sleep(0.15)
    assert nn.Linear(2, 2).weight.device.type == "cpu"
    first.join()
    second.join()
    assert devices == {"first": "meta", "second": "meta"}
    assert nn.Module.register_parameter is plain
    assert nn.Linear(2, 2).weight.device == torch.device("cpu")


def test_a_function_that_the_class_inherits_is_gone_afterwards():
    with patched(nn.Linear, __getattr__=nn.Module.__getattr__):
        assert "__getattr__" in vars(nn.Linear)
    assert "__getattr__" not in vars(nn.Linear)
