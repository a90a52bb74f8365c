"""What ships inside the package beside the bank: a backbone for pictures, and a model ready to use.

What they are, and how they were made, stands in the model cards beside them.
"""

from __future__ import annotations

from wdae.bank.embedded import ASSETS
from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import EMBEDDED, PictureBackbone
from wdae.errors import ModelError

BACKBONE = ASSETS / "resnet12"
READY = "ready"
"""The model that is ready to use, inside the backbone's folder."""


def embedded_backbone() -> PictureBackbone:
    """A small ResNet-12 of our own, trained on MiniImageNet's 64 base classes: pictures in, features out.

    ``embedded_backbone().features(["a.jpg", "b.jpg"])`` are vectors for :class:`wdae.FewShotClassifier`;
    ``network`` is the torch module. Its model card is ``assets/resnet12/README.md``.

    >>> eye = embedded_backbone()
    >>> eye.image_size, eye.dim, len(eye.class_names), eye.class_names[:2]
    (80, 512, 64, ('house finch', 'robin'))
    """
    from wdae.stage1.model_file import WEIGHTS, load_model
    from wdae.storage.files import sha256

    if not (BACKBONE / WEIGHTS).is_file():
        raise ModelError(
            "this copy of wdae has no backbone inside; give timm:NAME or a folder of wdae pretrain, or train"
            " one on your pictures with --train NAME"
        )
    trained = load_model(BACKBONE)
    known = {key: trained.card[key] for key in ("image_size", "mean", "std", "class_names")}
    return PictureBackbone.of(
        trained.network.backbone, EMBEDDED, {}, **known, weights_sha256=sha256(BACKBONE / WEIGHTS)
    )


def embedded_model() -> Model:
    """A model ready to use: it knows the 64 classes of :func:`embedded_backbone` and takes pictures.

    Add classes to it, and keep it with :func:`wdae.classifier.save`; ``wdae learn -o model`` does the latter.

    >>> model = embedded_model()
    >>> len(model.names), model.added, model.backbone.name
    (64, (), 'embedded')
    """
    from wdae.classifier.store import load

    folder = BACKBONE / READY
    if not folder.is_dir():
        raise ModelError("this copy of wdae has no ready model inside; give wdae learn a folder of pictures")
    return load(folder)
