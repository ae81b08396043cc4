"""Language models as components; `load_model` loads one."""

from mechrl.models.base import Model, Spec
from mechrl.models.loading import catalogue, load_model, resolve_device
from mechrl.models.tokenizer import Tokenizer

__all__ = ["Model", "Spec", "Tokenizer", "catalogue", "load_model", "resolve_device"]
