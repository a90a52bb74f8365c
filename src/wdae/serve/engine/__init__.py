"""Models in memory and what they answer: starting models, revisions, batches, insight."""

from wdae.serve.engine.loaded import Answer, Loaded, Question, answers, built, embedded
from wdae.serve.engine.models import Engine

__all__ = ["Answer", "Engine", "Loaded", "Question", "answers", "built", "embedded"]
