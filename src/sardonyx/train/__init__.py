"""Training of models: gradients, losses, optimizers, schedules, the trainer."""

from __future__ import annotations

from sardonyx.base.lazy_names import lazy_names

_NAMES = {
    "sardonyx.train.trainer.callbacks": ["Callback", "EarlyStopping", "MLflow", "Moment", "SaveBest", "TensorBoard"],
    "sardonyx.train.trainable.heads": ["swap_head"],
    "sardonyx.train.trainer.history": ["History"],
    "sardonyx.train.trainable.lora": ["Adapter", "LiveAdapters", "LoRA", "combine"],
    "sardonyx.train.losses": [
        "CTC", "BinaryCrossEntropy", "Contrastive", "Cosine", "CrossEntropy", "Dice", "Distillation", "Focal",
        "FunctionLoss", "Huber", "KullbackLeibler", "Loss", "MeanAbsoluteError", "MeanSquaredError", "ModelLoss",
        "OutputLoss", "Triplet",
    ],
    "sardonyx.train.data.labels": ["balanced_weights"],
    "sardonyx.train.trainer.metrics": ["Metric"],
    "sardonyx.train.online": [
        "DDM", "Answer", "Guard", "Learner", "LearnerReport", "PageHinkley", "Replay", "RiverModel",
    ],
    "sardonyx.train.optimizers": [
        "EWC", "LAMB", "SAM", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Lion", "Muon", "Optimizer",
        "RMSprop",
    ],
    "sardonyx.train.trainable.parameters": ["Parameter", "find_parameters", "select_parameters"],
    "sardonyx.train.trainable.peft_files": ["read_adapter", "read_peft", "write_peft"],
    "sardonyx.train.ort_artifacts": ["generate_artifacts"],
    "sardonyx.train.step.privacy": ["Privacy"],
    "sardonyx.train.trainable.refolding": ["restore_batch_norm"],
    "sardonyx.train.schedules": ["Constant", "CosineDecay", "Linear", "OneCycle", "Plateau", "Schedule", "Steps"],
    "sardonyx.train.trainable.trainable_models": ["trainable_form"],
    "sardonyx.train.trainer.trainer": ["Trainer"],
    "sardonyx.train.training_info": ["TrainingAlgorithm", "with_training_info"],
}  # fmt: skip

__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__ = lazy_names(__name__, _NAMES)
