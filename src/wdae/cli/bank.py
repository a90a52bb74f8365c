"""``wdae bank``: make, import and describe feature banks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from wdae.cli.options import Json, NewBank, check_bank
from wdae.errors import BankError
from wdae.printing import json_text

if TYPE_CHECKING:
    from wdae.bank import FeatureBank

app = App(name="bank", help="Make, import and describe feature banks.")


@app.command(name="import")
def import_(
    file: Path | None = None,
    /,
    *,
    output: NewBank,
    labels: Path | None = None,
    names: Path | None = None,
    base_weights: Path | None = None,
    cosine_scale: float | None = None,
    novel: str | None = None,
    validation: str | None = None,
    all_base: bool = False,
    part: tuple[str, ...] = (),
    held_out: int | None = None,
    seed: int = 0,
    dtype: Literal["float32", "float16", "int8"] | None = None,
    note: tuple[str, ...] = (),
) -> None:
    """Make a feature bank from features you have: wdae bank import features.npz -o my-bank.

    FILE is .npz, .npy, .safetensors, .csv, .tsv or .h5, with arrays called
    features [images, D] and labels [images] (class names or whole numbers).
    class_names, parts, base_weights and cosine_scale are taken where FILE has
    them. CSV has a header: a label column, perhaps a part column, the rest are
    features. HDF5 may have all_features, all_labels and count. Features may also
    be [classes, images, D], and then need no labels.

    Which classes are base, validation and novel comes from the first of these
    that is given: parts in the file; --novel and --validation; --all-base, or
    base weights for every class. Else they are drawn at random: 64 % base,
    16 % validation, 20 % novel.

    Parameters
    ----------
    file
        The file of features.
    labels
        File of labels (.txt with one a line, .npy, .json), where FILE has none.
    names
        File of class names, one a line; whole-number labels are positions in it, from 0.
    base_weights
        File of learned class weights [classes, D]: for the base classes in order, or for all classes.
    cosine_scale
        The scale of the cosine classifier that the weights belong to.
    novel
        Novel classes: names with commas between, positions as 80..99, or a text file with one a line.
    validation
        Validation classes, given in the same way; all classes not named are base.
    all_base
        All classes are base.
    part
        PART=FILE, repeated, instead of FILE: a file for each of base-train, base-held-out, validation, novel.
    held_out
        Images of each base class to hold out, its last ones; a fifth of them by default.
    seed
        Seed of the random draw of classes.
    dtype
        How features are stored; int8 takes a quarter of float32. Default: as in FILE, else float32.
    note
        KEY=VALUE, repeated: provenance to keep with the bank, such as backbone=resnet18.
    """
    from wdae.bank.importing import import_bank, import_parts
    from wdae.parts import Part
    from wdae.storage.files import refuse_existing

    refuse_existing(output)
    info = dict(_pair(word, "--note") for word in note)
    common: dict[str, Any] = {
        "names": names,
        "base_weights": base_weights,
        "cosine_scale": cosine_scale,
        "info": info,
    }
    if (file is None) == (not part):
        raise BankError("give one FILE of features, or --part PART=FILE for each part")
    if file is None:
        chosen = {"--labels": labels, "--novel": novel, "--validation": validation, "--all-base": all_base}
        for option, value in (chosen | {"--held-out": held_out}).items():
            if value is not None and value is not False:
                raise BankError(f"{option} goes with one FILE; with --part, the files say it")
        files = {Part.parse(key): Path(value) for key, value in (_pair(word, "--part") for word in part)}
        if len(files) < len(part):
            raise BankError("each part takes one file; one is given twice")
        bank = import_parts(files, **common)
    else:
        bank = import_bank(
            file,
            labels=labels,
            validation=_words(validation),
            novel=_words(novel),
            all_base=all_base,
            held_out=held_out,
            seed=seed,
            **common,
        )
    _write(bank, output, dtype or str(bank.features.dtype).removeprefix("torch."))


@app.command
def show(bank: Path, /, *, json: Json = False) -> None:
    """Describe a feature bank and check its files.

    Parameters
    ----------
    bank
        The bank's folder.
    """
    check_bank(bank)
    from wdae.bank import FeatureBank
    from wdae.bank.summary import print_summary, summary

    facts = summary(FeatureBank.open(bank), bank)
    if json:
        print(json_text(facts, indent=2))
    else:
        print_summary(facts)


@app.command
def join(
    *banks: Path,
    output: NewBank,
    dtype: Literal["float32", "float16", "int8"] = "int8",
) -> None:
    """Join banks of the same pictures: wdae bank join one two -o both. The features stand side by side.

    A score in the joined bank is the mean of the banks' scores: an ensemble of backbones. The banks must hold
    the same pictures in the same order, as wdae extract leaves them.

    Parameters
    ----------
    banks
        The banks' folders, two or more.
    dtype
        How features are stored.
    """
    from wdae.bank import FeatureBank
    from wdae.bank.join import join_banks
    from wdae.storage.files import refuse_existing

    if len(banks) < 2:
        raise BankError(f"joining takes two banks or more; got {len(banks)}")
    refuse_existing(output)
    _write(join_banks([FeatureBank.open(bank) for bank in banks]), output, dtype)


@app.command
def merge(*shards: Path, output: NewBank) -> None:
    """Make one bank of the shards of an extraction: wdae bank merge part-* -o my-bank.

    The bank is the one that wdae extract would have written without --shard, bit for bit. A shard that is
    missing, given twice or of another model is refused by name.

    Parameters
    ----------
    shards
        All folders that wdae extract --shard made, in any order.
    """
    from wdae.extract.shards import merge_shards
    from wdae.storage.files import refuse_existing

    refuse_existing(output)
    merge_shards(shards, output)
    _print(output)


@app.command
def synthesize(
    output: NewBank,
    *,
    base: int = 64,
    validation: int = 16,
    novel: int = 20,
    images: int = 100,
    held_out: int = 25,
    dim: int = 64,
    spread: float = 2.0,
    seed: int = 0,
    dtype: Literal["float32", "float16", "int8"] = "float32",
) -> None:
    """Make a bank of synthetic classes in a hierarchy, for trials: the same options give the same bank.

    Parameters
    ----------
    base
        Number of base classes.
    validation
        Number of validation classes.
    novel
        Number of novel classes.
    images
        Images of each class.
    held_out
        How many images of each base class are held out.
    dim
        Feature size.
    spread
        How far images lie from their class; more is harder.
    seed
        Seed of the draw.
    dtype
        How features are stored.
    """
    from wdae.storage.files import refuse_existing
    from wdae.synthetic import synthetic_bank

    refuse_existing(output)
    bank = synthetic_bank(
        base, validation, novel, images, dim, seed, held_out_per_class=held_out, spread=spread
    )
    _write(bank, output, dtype)


def _write(bank: FeatureBank, out: Path, dtype: Any) -> None:
    bank.save(out, dtype=dtype)
    _print(out)


def _print(out: Path) -> None:
    from wdae.bank import FeatureBank
    from wdae.bank.summary import print_summary, summary

    print_summary(summary(FeatureBank.open(out, verify=False), out))


def _words(text: str | None) -> list[str] | None:
    """Names with commas between, or the lines of a text file."""
    if text is None:
        return None
    if text.endswith(".txt"):
        from wdae.bank.labelled import read_column

        return [str(word) for word in read_column(text)]
    return [word.strip() for word in text.split(",") if word.strip()]


def _pair(word: str, option: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not (key and equals and value):
        raise BankError(f"{option} takes NAME=VALUE; got {word!r}")
    return key, value
