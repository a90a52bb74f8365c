"""Models in memory and what they answer: starting models, revisions, batches, insight."""

from wdae.serve.engine.models import Answer, Engine, Loaded, Question, answers, built, embedded

__all__ = ["Answer", "Engine", "Loaded", "Question", "answers", "built", "embedded"]
