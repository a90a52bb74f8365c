"""The training loop of stage 1: backbone, base weights and scale by cross-entropy on the base classes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from wdae.backbones import forward_flops
from wdae.errors import RecipeError
from wdae.runs.interrupt import held_interrupts
from wdae.runs.progress import progress
from wdae.runs.run import Run
from wdae.runtime.distributed import Team, share_batch_norm
from wdae.runtime.randomness import derive_seed, seeded
from wdae.stage1.averaging import refresh_statistics
from wdae.stage1.batches import Batches
from wdae.stage1.config import Stage1Config
from wdae.stage1.data import Stage1Data
from wdae.stage1.distillation import Teachers
from wdae.stage1.mixup import draw_mix
from wdae.stage1.model_file import load_model, save_model
from wdae.stage1.objective import Meter, n_classified, objective
from wdae.stage1.recognition_model import RecognitionModel
from wdae.stage1.state import Stage1State, start_from
from wdae.stage1.validation import validate
from wdae.storage.checkpoint import load_checkpoint, save_checkpoint

LAST, BEST, MODEL = "last.safetensors", "best.safetensors", "model"


@dataclass(frozen=True)
class Pretraining:
    """How :func:`train_stage1` ended; ``model`` is the folder of the weights once training is finished."""

    step: int
    total_steps: int
    figures: dict[str, float]
    images_per_s: float
    tflops: float
    model: Path | None

    @property
    def finished(self) -> bool:
        """Whether the last epoch was reached."""
        return self.model is not None


def train_stage1(
    config: Stage1Config,
    data: Stage1Data,
    run: Run,
    team: Team,
    *,
    resume: bool = False,
    max_seconds: float | None = None,
    model_dtype: Literal["float32", "float16"] = "float32",
) -> Pretraining:
    """Train until the last epoch, or until ``max_seconds`` have passed.

    A run that stopped early, by Ctrl-C too, left a checkpoint. With ``resume`` it continues from there; on
    the CPU it reaches exactly the weights of an uninterrupted run.
    """
    began, device, main = time.monotonic(), team.device, team.is_main
    batches = data.batches(config, team)
    per_epoch, total = batches.steps_per_epoch, config.epochs * batches.steps_per_epoch
    state = Stage1State(config, len(data.class_names), total, device)
    if config.sync_batch_norm and team.size > 1:
        share_batch_norm(state.model, device)
    held_out = (config.data.held_out, config.data.drawn_with(config.seed))
    if config.start is not None and not resume:
        trained = load_model(config.start, device, trust=config.backbone)
        trained.refuse_leak(config.start, *held_out, data.unseen)
        if trained.held_out == held_out:
            trained.refuse_other_pictures(config.start, data.held_out_digests)
        start_from(state.model, data.class_names, trained)
    state.prepare()
    if resume:
        state.restore(run.path / LAST)
        if main:
            run.truncate_metrics(state.step)
    _check_layers(config, state.model)
    teachers = None
    if config.distillation:
        folders = config.distillation.teachers
        drawn = data.held_out_digests
        teachers = Teachers(folders, config.augment, data.class_names, held_out, device, drawn)
    mode = config.compile if config.compile != "auto" else ("default" if device.type == "cuda" else "off")
    if mode != "off":
        state.model.compile_stages(mode)
        batches.compile(mode)
        if teachers is not None:
            teachers.compile_stages(mode)
    model = team.wrap(state.model).train()
    flops = 3 * forward_flops(state.model.backbone, batches.side)
    meter = Meter(device, config.batch * batches.copies, flops, team)
    bar = progress(total if main else 0, "stage 1", "steps", done=state.step)
    stopped = False
    with bar, held_interrupts() as interrupted:
        while state.step < total and not stopped:
            rate = state.set_rate()
            batch = batches.at(state.step)
            mix = draw_mix(config.mixup, config.seed, state.step, batch.partner) if config.mixup else None
            dropout = derive_seed(config.seed, "dropout", state.step, team.rank)
            with seeded(dropout, device), _autocast(config, device):
                output = model(batch.images, mix)
                targets = teachers.targets(batch.images[: n_classified(config, batch)]) if teachers else None
            loss, values = objective(config, output, batch, mix, targets)
            state.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            state.optimiser.step()
            if state.average is not None:
                state.average.update(state.step)
            meter.add(values)
            state.step += 1

            epoch_ends, epoch = state.step % per_epoch == 0, state.step // per_epoch
            if state.step % config.log_every == 0 or epoch_ends:
                line = meter.read()
                bar.update(state.step - bar.done, loss=line["loss"], accuracy=line["accuracy"])
                if main:
                    run.log(step=state.step, epoch=state.step / per_epoch, rate=rate, **line)
                late = max_seconds is not None and time.monotonic() - began > max_seconds
                stopped = team.agree(late)
            stopped = stopped or (team.size == 1 and interrupted())
            if epoch_ends:
                meter.end_epoch()
                if epoch % config.validation.every == 0 and state.step < total:
                    _refresh(state, config, batches)
                    if main:
                        _validate(state, config, data, run, device)
                    meter.skip_pause()
            if main and (stopped or (epoch_ends and epoch % config.checkpoint_every == 0)):
                state.save(run.path / LAST)
                meter.skip_pause()
    if interrupted():
        raise KeyboardInterrupt
    figures, folder = state.best, None
    if state.step == total:
        figures, folder = _finish(state, config, data, run, team, batches, model_dtype), run.path / MODEL
        if main:
            run.log(
                step=state.step,
                kept=figures,
                epoch_images_per_s=meter.images_per_s,
                epoch_tflops=meter.tflops,
            )
        team.barrier()
    return Pretraining(state.step, total, figures, meter.images_per_s, meter.tflops, folder)


def _finish(
    state: Stage1State,
    config: Stage1Config,
    data: Stage1Data,
    run: Run,
    team: Team,
    batches: Batches,
    model_dtype: Literal["float32", "float16"],
) -> dict[str, float]:
    """Validate once more and write the final model, the best or the last; returns its figures."""
    if team.is_main:
        state.save(run.path / LAST)
    _refresh(state, config, batches)
    if not team.is_main:
        return {}
    final = state.evaluated
    figures = _validate(state, config, data, run, team.device)
    if config.keep == "best" and state.best.get("val_score", -1.0) > figures.get("val_score", -1.0):
        final.load_state_dict(load_checkpoint(run.path / BEST).tensors)
        figures = state.best
    card: dict[str, Any] = {
        "backbone": config.backbone,
        "backbone_options": config.backbone_options,
        "class_names": list(data.class_names),
        "image_size": batches.picture_side,
        "mean": list(config.augment.mean),
        "std": list(config.augment.std),
        "recipe": config.model_dump(mode="json"),
        "figures": figures,
    }
    if data.held_out_digests:
        card["held_out_pictures"] = dict(data.held_out_digests)
    save_model(run.path / MODEL, final, card, model_dtype)
    return figures


def _refresh(state: Stage1State, config: Stage1Config, batches: Batches) -> None:
    """Compute BatchNorm's statistics of the average, in every process alike.

    Those it gathered belong to other weights, and to mixed pictures where mixup is on.
    """
    model, averaging = state.evaluated, config.averaging
    if model is not state.model and averaging is not None:
        count = min(averaging.refresh_batches, batches.steps_per_epoch)
        steps = range(state.step, state.step + count)
        if steps:
            refresh_statistics(model, (batches.at(step).images for step in steps), config.precision)


def _validate(
    state: Stage1State, config: Stage1Config, data: Stage1Data, run: Run, device: torch.device
) -> dict[str, float]:
    """Validate, log, and save the weights if they are the best so far."""
    model = state.evaluated
    figures = validate(model, config, data, device)
    figures["scale"] = float(model.classifier.scale.detach())
    run.log(step=state.step, epoch=state.step * config.epochs / state.total_steps, **figures)
    if "val_score" in figures and figures["val_score"] > state.best.get("val_score", -1.0):
        state.best = {**figures, "step": float(state.step)}
        save_checkpoint(run.path / BEST, model.state_dict(), {"step": state.step, "figures": figures})
    return figures


def _check_layers(config: Stage1Config, model: RecognitionModel) -> None:
    n_stages = len(model.backbone.stages)
    if config.mixup and not all(0 <= layer < n_stages for layer in config.mixup.layers):
        raise RecipeError(
            f"mixup.layers are {config.mixup.layers}; {config.backbone} has {n_stages} stages, so 0 "
            f"(pictures) to {n_stages - 1} are accepted"
        )


def _autocast(config: Stage1Config, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
