"""Language models as components: `load_model` is the way in."""

from mechrl.models.base import Model, Spec
from mechrl.models.loading import catalogue, load_model, resolve_device
from mechrl.models.tokenizer import Tokenizer

__all__ = ["Model", "Spec", "Tokenizer", "catalogue", "load_model", "resolve_device"]
