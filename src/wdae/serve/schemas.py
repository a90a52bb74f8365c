"""What goes in and out of the API, with an example for each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PICTURE = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
Kind = Literal["base", "added"]
Name = Annotated[str, Field(min_length=1, max_length=200)]
PictureIds = Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=10_000)]


class Schema(BaseModel):
    """What all have in common. Of answers, a client leaves out what a later service adds."""

    model_config = ConfigDict(populate_by_name=True)


class Given(Schema):
    """What is given: nothing unknown is accepted."""

    model_config = ConfigDict(extra="forbid")


def _example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [value]})


_AT = "2026-01-02T03:04:05+00:00"
_CLASS = {"id": "7d0c2f1b9e8a4f66", "name": "okapi", "kind": "added", "examples": 5, "cover": PICTURE}
_MODEL: dict[str, Any] = {
    "id": "4b1d5c0e8f7a2936",
    "name": "my animals",
    "revision": 3,
    "base_classes": 64,
    "added": 1,
    "starting": PICTURE,
    "created": _AT,
}


class NewModel(Given):
    """A model to be made."""

    model_config = _example({"name": "my animals", "starting": "resnet12"})

    name: Name
    starting: Annotated[str, Field(max_length=64)] = "resnet12"


class ModelChange(Given):
    """What to change of a model; ``novel_share`` null: as learned, no more than base classes can bear."""

    model_config = _example({"name": "our animals", "novel_share": 0.2})

    name: Name | None = None
    novel_share: Annotated[float, Field(gt=0, lt=1)] | None = None


class Class(Schema):
    """A class: its id stays when its name changes."""

    model_config = _example(_CLASS)

    id: str
    name: str
    kind: Kind
    examples: int
    cover: str | None = Field(None, description="one of its pictures")


class BackboneOut(Schema):
    """What turns pictures into features."""

    name: str
    image_size: int
    dim: int


class ModelOut(Schema):
    """A model."""

    model_config = _example(
        {
            **_MODEL,
            "added": [_CLASS],
            "novel_share": None,
            "backbone": {"name": "resnet12", "image_size": 84, "dim": 400},
        }
    )

    id: str
    name: str
    revision: int
    base_classes: int
    added: list[Class]
    novel_share: float | None
    backbone: BackboneOut
    starting: str
    created: str


class ModelItem(Schema):
    """A model in a list."""

    id: str
    name: str
    revision: int
    base_classes: int
    added: int = Field(description="how many classes were added")
    starting: str
    created: str


class Models(Schema):
    """The models there are."""

    model_config = _example({"items": [_MODEL]})

    items: list[ModelItem]


class Classes(Schema):
    """Some of a model's classes, and how many there are in all."""

    model_config = _example({"revision": 3, "total": 65, "items": [_CLASS]})

    revision: int
    total: int
    items: list[Class]


class NewClass(Given):
    """A class to be made, or the new name of one."""

    model_config = _example({"name": "okapi"})

    name: Name


class Merge(Given):
    """Classes (ids) whose examples go to another one; they go."""

    model_config = _example({"from": ["7d0c2f1b9e8a4f66"], "into": "b12"})

    from_: Annotated[list[str], Field(alias="from", min_length=1, max_length=1000)]
    into: str


class Changed(Schema):
    """The revision that a change has made."""

    model_config = _example({"revision": 4})

    revision: int


class ChangedClass(Changed):
    """The revision that a change has made, and the class."""

    model_config = _example({"revision": 4, "id": "7d0c2f1b9e8a4f66", "name": "okapi"})

    id: str
    name: str


class AddedExample(Schema):
    """A picture that has become an example."""

    picture: str
    class_: str = Field(alias="class", description="the class's name")
    class_id: str
    file: str


class RefusedFile(Schema):
    """A file that was not taken, and why."""

    file: str
    reason: str


class Taught(Schema):
    """What has become of an upload; bad pictures are refused by themselves."""

    model_config = _example(
        {
            "revision": 4,
            "added": [
                {"picture": PICTURE, "class": "okapi", "class_id": "7d0c2f1b9e8a4f66", "file": "okapi-1.jpg"}
            ],
            "refused": [{"file": "notes.txt", "reason": "not a picture that is read (JPEG, PNG, WEBP)"}],
            "notes": ["base classes: 78.4 % → 78.1 % of 1,280 held-out pictures"],
        }
    )

    revision: int
    added: list[AddedExample]
    refused: list[RefusedFile]
    notes: list[str] = Field(description="what a person should look at, in sentences")


class Example(Schema):
    """An example of a class."""

    picture: str
    width: int
    height: int
    created: str


class Examples(Schema):
    """Examples of a class."""

    model_config = _example(
        {
            "revision": 4,
            "total": 1,
            "items": [{"picture": PICTURE, "width": 640, "height": 480, "created": _AT}],
        }
    )

    revision: int
    total: int
    items: list[Example]


class Move(Given):
    """Pictures that become examples of another class, which is made where there is none of that name."""

    model_config = _example({"pictures": [PICTURE], "to": "zebra"})

    pictures: PictureIds
    to: Name


class Removal(Given):
    """Pictures that are to be no examples any more; ``forever``: gone from history and storage too."""

    model_config = _example({"pictures": [PICTURE], "forever": False})

    pictures: PictureIds
    forever: bool = False


class Probability(Schema):
    """A class and its probability."""

    class_: str = Field(alias="class")
    kind: Kind
    probability: float


class Near(Schema):
    """An example, its class, and its cosine with the picture."""

    picture: str
    class_: str = Field(alias="class")
    cosine: float


_ANSWER = {
    "revision": 4,
    "prediction": "okapi",
    "unknown": False,
    "probabilities": [{"class": "okapi", "kind": "added", "probability": 0.93}],
    "nearest": [{"picture": PICTURE, "class": "okapi", "cosine": 0.81}],
}


class PredictionOut(Schema):
    """What a model says of a picture: its likeliest class, and whether it resembles none of them."""

    model_config = _example(_ANSWER)

    revision: int
    prediction: str
    unknown: bool
    probabilities: list[Probability]
    nearest: list[Near]


class FilePrediction(Schema):
    """What a model says of one of several files, or why it was refused."""

    model_config = _example({"file": "a.jpg", "prediction": _ANSWER, "refused": None})

    file: str
    prediction: PredictionOut | None = None
    refused: str | None = None


class Predictions(Schema):
    """What a model says of several files, in their order."""

    model_config = _example({"items": [{"file": "a.jpg", "prediction": _ANSWER, "refused": None}]})

    items: list[FilePrediction]


class RevisionOut(Schema):
    """A change: who, when, what."""

    number: int
    at: str
    who: str
    action: str
    sentence: str
    in_effect: bool = Field(description="whether the model has this change now")


class History(Schema):
    """The changes of a model, the latest first."""

    model_config = _example(
        {
            "revision": 2,
            "can_undo": True,
            "can_redo": False,
            "items": [
                {
                    "number": 2,
                    "at": _AT,
                    "who": "local",
                    "action": "teach",
                    "sentence": "taught okapi × 5",
                    "in_effect": True,
                }
            ],
        }
    )

    revision: int
    can_undo: bool
    can_redo: bool
    items: list[RevisionOut]


class Undo(Given):
    """Where to: the number of a revision (0: as it started); without, one step back."""

    model_config = _example({"to": 1})

    to: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


class MeOut(Schema):
    """Who asks."""

    name: str
    role: str


class About(Schema):
    """The service, and who asks."""

    model_config = _example(
        {
            "version": "1.0",
            "models": 1,
            "starting": ["resnet12", "lite0"],
            "limits": {"picture_bytes": 20971520},
            "me": {"name": "local", "role": "admin"},
            "csrf": "",
        }
    )

    version: str
    models: int
    starting: list[str]
    limits: dict[str, Any]
    me: MeOut
    csrf: str


class Health(Schema):
    """Whether the service is there."""

    model_config = _example({"status": "ok"})

    status: str


class ExpectedOut(Schema):
    """Share of a class's pictures that will be recognised, now and with five examples more."""

    now: float
    more: float


class ConfusedWith(Schema):
    """Another class, and the share of pictures of the two that are taken for each other."""

    class_: str = Field(alias="class")
    share: float


class Stray(Schema):
    """An example that looks out of place, and the class that it looks like where it is another."""

    picture: str
    looks_like: str | None


class ClassInsight(Schema):
    """What is known of an added class."""

    class_: str = Field(alias="class")
    class_id: str
    examples: int
    expected: ExpectedOut | None = None
    enough: str = Field(description="whether it has enough examples, in words")
    confused_with: list[ConfusedWith] = []
    strays: list[Stray] = []
    warnings: list[str] = []


class Insight(Schema):
    """What is known of added classes, and which of them needs pictures most."""

    model_config = _example(
        {
            "revision": 4,
            "total": 1,
            "most_needed": "okapi",
            "classes": [
                {
                    "class": "okapi",
                    "class_id": "7d0c2f1b9e8a4f66",
                    "examples": 5,
                    "expected": {"now": 0.72, "more": 0.8},
                    "enough": "more would help: about 72% of its pictures will be recognised",
                    "confused_with": [{"class": "zebra", "share": 0.1}],
                    "strays": [{"picture": PICTURE, "looks_like": "zebra"}],
                    "warnings": [],
                }
            ],
        }
    )

    revision: int
    total: int
    most_needed: str | None
    classes: list[ClassInsight]


class Point(Schema):
    """The place of a class in the map, from 0 to 1."""

    class_: str = Field(alias="class")
    class_id: str
    kind: Kind
    x: float
    y: float


class Map(Schema):
    """Places of all classes; alike ones stand together."""

    model_config = _example(
        {
            "revision": 4,
            "points": [
                {"class": "okapi", "class_id": "7d0c2f1b9e8a4f66", "kind": "added", "x": 0.41, "y": 0.73}
            ],
        }
    )

    revision: int
    points: list[Point]


class ChangedPicture(Schema):
    """A picture whose answer changed; of a held-out one the model keeps only its feature (picture: null)."""

    picture: str | None
    label: str
    before: str
    now: str


class TakenOut(Schema):
    """An added class, and how many held-out pictures of base classes it took."""

    class_: str = Field(alias="class")
    pictures: int


class Cost(Schema):
    """Accuracy on held-out pictures of base classes, before anything was added and now."""

    model_config = _example(
        {
            "revision": 4,
            "base_before": 0.789,
            "base_now": 0.784,
            "pictures": 2000,
            "sentence": "base classes: 78.9 % → 78.4 % of 2,000 held-out pictures",
            "changed_total": 1,
            "changed": [{"picture": None, "label": "lion", "before": "lion", "now": "okapi"}],
            "taught_total": 1,
            "taught": [{"picture": PICTURE, "label": "okapi", "before": "lion", "now": "okapi"}],
            "confusions": [{"class": "okapi", "pictures": 1}],
        }
    )

    revision: int
    base_before: float | None
    base_now: float | None
    pictures: int
    sentence: str
    changed_total: int = Field(description="held-out pictures of base classes that changed their answer")
    changed: list[ChangedPicture] = Field(description="the first of these; lost ones come first")
    taught_total: int = Field(description="taught pictures that are answered otherwise than before")
    taught: list[ChangedPicture] = Field(description="the first of these")
    confusions: list[TakenOut]


class ExplanationOut(Schema):
    """Why a picture got its answer: in sentences, and all that is known of the likeliest class."""

    model_config = _example(
        {
            "sentences": ["it looks most like okapi (93.0%), then zebra (4.0%)"],
            "prediction": _ANSWER,
            "about": {"name": "okapi", "shots": 5},
        }
    )

    sentences: list[str]
    prediction: PredictionOut
    about: dict[str, Any]


class NextItem(Schema):
    """An unlabelled picture: which of the files sent, and what the model thinks of it now."""

    index: int
    file: str
    prediction: str
    probability: float
    unknown: bool


class Next(Schema):
    """Unlabelled pictures, the one whose label would teach most first."""

    model_config = _example(
        {
            "revision": 4,
            "items": [
                {"index": 3, "file": "d.jpg", "prediction": "okapi", "probability": 0.41, "unknown": False}
            ],
            "refused": [],
        }
    )

    revision: int
    items: list[NextItem]
    refused: list[RefusedFile]


_JOB: dict[str, Any] = {
    "id": "0a1b2c3d4e5f60718293a4b5",
    "kind": "import_zip",
    "model": "4b1d5c0e8f7a2936",
    "state": "running",
    "done": 300,
    "total": 1200,
    "message": "300 of 1200 pictures",
    "result": {"added": 298, "refused_count": 2},
    "who": "local",
    "created": _AT,
    "updated": "2026-01-02T03:04:15+00:00",
}


class JobOut(Schema):
    """A job; ``state`` is queued, running, done, failed or cancelled."""

    model_config = _example(_JOB)

    id: str
    kind: str
    model: str | None
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    done: int
    total: int
    message: str
    result: dict[str, Any] | None
    who: str
    created: str
    updated: str


class JobsOut(Schema):
    """Jobs, the newest first."""

    model_config = _example({"items": [_JOB]})

    items: list[JobOut]
