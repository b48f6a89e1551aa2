from small_config import HUB, MADE_UP, ON_THE_FLY, TABLE, URL, faults

TAIL = {"source": "files", "path": "x", "split_by": "tail", "format": "prompt-completion"}

# What is set at a path, and how the one line that it costs begins.
FAULTS: list[tuple[str, object, str]] = [
    # Misspelt keys, at every level.
    ("modles", {}, "modles: unknown key; did you mean models?"),
    ("zzz", 1, "zzz: unknown key; expected one of datasets, models, defaults, runs"),
    ("5", 1, "5: unknown key; expected one of datasets, models, defaults, runs"),
    ("datasets.modules.formt", "text", "datasets.modules.formt: unknown key; did you mean format?"),
    ("models.tiny.hiden_size", 8, "models.tiny.hiden_size: unknown key; did you mean hidden_size?"),
    (
        "models.tiny.tokenizer.vocabsize",
        300,
        "models.tiny.tokenizer.vocabsize: unknown key; did you mean vocab_size?",
    ),
    ("defaults.trian", {}, "defaults.trian: unknown key; did you mean train?"),
    (
        "defaults.train.learnig_rate",
        1,
        "defaults.train.learnig_rate: unknown key; did you mean learning_rate?",
    ),
    ("runs.tuned.trainn", {}, "runs.tuned.trainn: unknown key; did you mean train?"),
    (
        "runs.tuned.train.learnig_rate",
        1,
        "runs.tuned.train.learnig_rate: unknown key; did you mean learning_rate?",
    ),
    ("runs.tuned.model.rum", "base", "runs.tuned.model.rum: unknown key; did you mean run?"),
    ("runs.tuned.adapter", {"r": 8}, "runs.tuned.adapter.r: unknown key; did you mean rank?"),
    ("defaults.train.fp16", True, "defaults.train.fp16: unknown key; did you mean precision?"),
    # An entry may have the name of a key.
    (
        "runs.train",
        {"model": "tiny", "dataset": "modules", "train": {"sed": 1}},
        "runs.train.train.sed: unknown key; did you mean seed?",
    ),
    (
        "models.path",
        {"source": "path", "path": "x", "paht": "x"},
        "models.path.paht: unknown key; did you mean path?",
    ),
    # A key of another source is unknown here, and no hint names it.
    ("models.folder.hidden_size", 8, "models.folder.hidden_size: unknown key; expected one of "),
    ("models.tiny.path", "x", "models.tiny.path: unknown key; expected one of source, arch"),
    ("datasets.modules.split_by", "tail", "datasets.modules.split_by: unknown key; expected one "),
    # Wrong types.
    (
        "defaults.train.learning_rate",
        "fast",
        "defaults.train.learning_rate: got 'fast', expected a number; "
        "see defaults in docs/configuration.md",
    ),
    (
        "defaults.train.max_steps",
        1.5,
        "defaults.train.max_steps: got 1.5, expected a whole number; ",
    ),
    (
        "runs.base.train.max_steps",
        "ten",
        "runs.base.train.max_steps: got 'ten', expected a whole number; "
        "see runs in docs/configuration.md",
    ),
    (
        "models.tiny.tie_word_embeddings",
        "perhaps",
        "models.tiny.tie_word_embeddings: got 'perhaps', expected true or false; ",
    ),
    (
        "defaults.ray.use_gpu",
        "maybe",
        "defaults.ray.use_gpu: got 'maybe', expected 'auto' or true or false; ",
    ),
    (
        "defaults.ray.resources_per_worker",
        [1],
        "defaults.ray.resources_per_worker: got [1], expected a mapping; ",
    ),
    (
        "defaults.ray.resources_per_worker",
        {"CPU": "all"},
        "defaults.ray.resources_per_worker.CPU: got 'all', expected a number; ",
    ),
    (
        "datasets.notes.path",
        5,
        "datasets.notes.path: got 5, expected text or a list or a mapping; ",
    ),
    ("datasets.notes.path", ["a", 5], "datasets.notes.path.1: got 5, expected text; "),
    ("datasets.notes", "notes.txt", "datasets.notes: got 'notes.txt', expected a mapping; "),
    ("defaults", None, "defaults: got None, expected a mapping; "),
    ("defaults.train", 5, "defaults.train: got 5, expected a mapping; "),
    ("runs", [], "runs: got [], expected a mapping; see runs in docs/configuration.md"),
    ("runs.tuned", 5, "runs.tuned: got 5, expected a mapping; "),
    ("runs.tuned.ray", None, "runs.tuned.ray: got None, expected a mapping; "),
    ("runs.tuned.model", 5, "runs.tuned.model: got 5, expected text or a mapping; "),
    ("runs.tuned.model", {"run": 5}, "runs.tuned.model.run: got 5, expected text; "),
    # Locations by split.
    (
        "datasets.notes.path",
        {"train": "a", "tset": "b"},
        "datasets.notes.path.tset: unknown key; did you mean test?",
    ),
    (
        "datasets.notes.path",
        {"train": "a", "zzz": "b"},
        "datasets.notes.path.zzz: unknown key; expected one of train, validation, test",
    ),
    ("datasets.notes.path", {"train": 3}, "datasets.notes.path.train: got 3, expected text or a l"),
    (
        "datasets.notes.path",
        {"train": "a", "test": ["b", 3]},
        "datasets.notes.path.test.1: got 3, expected text; see datasets in docs/configuration.md",
    ),
    ("runs.base.dataset", {"modules": 0}, "runs.base.dataset.modules: got 0, expected more than 0"),
    ("runs.base.dataset", {"modules": -1}, "runs.base.dataset.modules: got -1, expected more th"),
    ("runs.base.dataset", {"modules": "x"}, "runs.base.dataset.modules: got 'x', expected a num"),
    ("runs.base.dataset", ["modules"], "runs.base.dataset: got ['modules'], expected text or a m"),
    (
        "runs.base.dataset",
        {},
        "runs.base.dataset: got a mapping, expected text or at least",
    ),
    ("datasets.notes.path", {"test": "a"}, "datasets.notes.path.train: missing; add it, "),
    ("datasets.notes.path", {}, "datasets.notes.path.train: missing; add it, "),
    ("datasets.notes.path", {"train": []}, "datasets.notes.path.train: got [], expected text or "),
    (
        "datasets.x",
        {**URL, "url": {"train": "a", "tset": "b"}},
        "datasets.x.url.tset: unknown key; did you mean test?",
    ),
    *(
        (
            "datasets.x",
            {**URL, "url": url},
            "datasets.x.url: the URL contains credentials, and the config is written to logs ",
        )
        for url in (
            "https://me:secret@host/a.csv",
            "https://secret@host/a.csv",
            ["https://host/a.csv", "ftp://me:secret@host/b.csv"],
            {"train": "https://host/a.csv", "test": "https://me:secret@host/b.csv"},
        )
    ),
    *(
        (
            "defaults.data.stream_from",
            folder,
            f"defaults.data.stream_from: got {folder!r}, expected ",
        )
        for folder in ("bucket/folder", "/shared/folder", "s3:/bucket", "://bucket")
    ),
    ("datasets.x", {**URL, "url": 3}, "datasets.x.url: got 3, expected text or a list or a mapp"),
    (
        "datasets.x",
        {**HUB, "split": {"train": "a", "tset": "b"}},
        "datasets.x.split.tset: unknown key; did you mean test?",
    ),
    (
        "datasets.x",
        {**HUB, "split": {"train": ["a"]}},
        "datasets.x.split.train: got ['a'], expected text; see ",
    ),
    ("datasets.x", {**HUB, "split": 3}, "datasets.x.split: got 3, expected text or a mapping; "),
    (
        "datasets.x",
        {**HUB, "split": {"test": "a"}},
        "datasets.x.split.train: missing; add it, see ",
    ),
    # Values out of range.
    (
        "defaults.train.learning_rate",
        -1,
        "defaults.train.learning_rate: got -1, expected more than 0; ",
    ),
    (
        "defaults.train.num_epochs",
        float("inf"),
        "defaults.train.num_epochs: got inf, expected a finite number; ",
    ),
    ("defaults.train.warmup_ratio", 1, "defaults.train.warmup_ratio: got 1, expected less than 1;"),
    ("defaults.train.min_lr_ratio", 2, "defaults.train.min_lr_ratio: got 2, expected at most 1;"),
    ("runs.base.train.seed", -1, "runs.base.train.seed: got -1, expected at least 0; "),
    (
        "runs.base.ray.num_workers",
        0,
        "runs.base.ray.num_workers: got 0, expected 'auto' or more than 0 or a mapping; ",
    ),
    (
        "models.tiny.tokenizer.vocab_size",
        100,
        "models.tiny.tokenizer.vocab_size: got 100, expected at least 258; "
        "see models in docs/configuration.md",
    ),
    (
        "defaults.ray.resources_per_worker",
        {"CPU": 0},
        "defaults.ray.resources_per_worker.CPU: got 0, expected more than 0; ",
    ),
    (
        "datasets.notes.path",
        [],
        "datasets.notes.path: got [], expected text or at least 1 entry or a mapping; ",
    ),
    ("datasets.notes.test_share", 1, "datasets.notes.test_share: got 1, expected less than 1; "),
    # Words that are not among those known.
    ("defaults.train.strategy", "dpp", "defaults.train.strategy: got 'dpp', expected 'ddp'"),
    (
        "defaults.train.precision",
        "fp16",
        "defaults.train.precision: got 'fp16', expected 'auto', 'bf16' or 'fp32'; ",
    ),
    (
        "datasets.notes.source",
        "file",
        "datasets.notes.source: got 'file', expected one of 'python-stdlib', 'files'",
    ),
    # What has to be there.
    ("datasets.x", {"source": "files"}, "datasets.x.path: missing; add it, see "),
    ("datasets.x", {"path": "x"}, "datasets.x.source: missing; add it, see "),
    ("models.x", {"source": "path"}, "models.x.path: missing; add it, see mo"),
    (
        "models.x",
        {"source": "path", "path": "x", "new_tokens": ["<a>", "<a>"]},
        "models.x.new_tokens: got an empty or a repeated token; remove it",
    ),
    (
        "models.x",
        {"source": "path", "path": "x", "new_tokens": ["<a>"], "classes_of": "modules"},
        "models.x.new_tokens: only for models of text; remove it or classes_of",
    ),
    ("models.x", {"source": "scratch"}, "models.x.tokenizer: missing; add it, "),
    ("runs.x", {"model": "tiny"}, "runs.x.dataset: missing; add it, see runs "),
    ("runs.tuned.model", {}, "runs.tuned.model.run: missing; add it, see runs "),
    # Text of another form.
    ("models.x", {**HUB, "revision": "main"}, "models.x.revision: got 'main', expected the hash"),
    ("models.x", {**HUB, "repo_id": "a/b/c"}, "models.x.repo_id: got 'a/b/c', expected text of "),
    (
        "runs.my run",
        {"model": "tiny", "dataset": "modules"},
        "runs.my run: got 'my run', expected text of the form ",
    ),
    # Names that nothing has.
    (
        "runs.tuned.dataset",
        "function",
        "runs.tuned.dataset: got function, expected a name under datasets; did you mean functions?",
    ),
    (
        "runs.base.model",
        "huge",
        "runs.base.model: got huge, expected a name under models; add it under models",
    ),
    (
        "runs.tuned.model",
        {"run": "bse"},
        "runs.tuned.model.run: got bse, expected a name under runs; did you mean base?",
    ),
    (
        "models.tiny.tokenizer.train_on",
        "module",
        "models.tiny.tokenizer.train_on: got module, expected a name under datasets; "
        "did you mean modules?",
    ),
    (
        "runs.base.model",
        {"run": "base"},
        "runs.base.model.run: runs form a cycle (base <- base); give one of them a base "
        "model from models",
    ),
    ("datasets.x", {"source": "synthetic"}, "datasets.x.size_gb: missing; "),
    ("datasets.x", {**MADE_UP, "size_gb": 0}, "datasets.x.size_gb: got 0, expected more than 0; "),
    ("datasets.x", {**URL, "sha256": "abc"}, "datasets.x.sha256: got 'abc', expected a SHA-256, "),
    ("datasets.x", {**HUB, "revision": "main"}, "datasets.x.revision: got 'main', expected the h"),
    # Keys at odds with one another.
    (
        "datasets.x",
        {**TABLE, "columns": {"txt": "body"}},
        "datasets.x.columns.txt: format text doesn't have this column, only text; "
        "rename the key or change the format",
    ),
    (
        "datasets.x",
        {**HUB, "format": "instruction", "columns": {"prompt": "q"}},
        "datasets.x.columns.prompt: format instruction doesn't have this column, only "
        "instruction, input, output, system, history; rename the key or change the format",
    ),
    ("datasets.x", {**TABLE, "columns": {"text": 3}}, "datasets.x.columns.text: got 3, expected t"),
    (
        "datasets.x",
        {**TABLE, "system": "Be brief."},
        "datasets.x.system: a system prompt needs format: instruction, messages or preference, got "
        "format: text; remove it or change the format",
    ),
    *(
        (
            "datasets.x",
            {**URL, "url": url, "sha256": "0" * 64},
            "datasets.x.sha256: got one digest for 2 URLs, expected a single URL; "
            "remove it, or make each URL a dataset",
        )
        for url in (["a", "b"], {"train": "a", "test": "b"})
    ),
    *(
        (
            f"{section}.data.{key}",
            value,
            f"{section}.data.{key}: {value} needs loader: stream, got loader: memory; "
            "change one of them",
        )
        for section in ("defaults", "runs.tuned")
        for key, value in (("tokenize", "on-the-fly"), ("stream_from", "s3://bucket/folder"))
    ),
    (
        "defaults.data",
        {**ON_THE_FLY, "loader": "stream", "stream_from": "s3://bucket/folder"},
        "defaults.data.stream_from: needs tokenize: ahead, because tokenize: on-the-fly stores "
        "no tokens to copy; change one of them",
    ),
    (
        "models.tiny.hidden_size",
        250,
        "models.tiny.hidden_size: got 250, expected an even multiple of num_attention_heads (4); "
        "change one of them",
    ),
    (
        "models.tiny.num_key_value_heads",
        3,
        "models.tiny.num_key_value_heads: got 3, expected a divisor of num_attention_heads (4); "
        "change one of them",
    ),
    (
        "datasets.x",
        TAIL,
        "datasets.x.split_by: tail needs format: text, got format: prompt-completion; "
        "set split_by: hash",
    ),
    (
        "runs.base.ray.num_workers",
        3,
        "runs.base.train.global_batch_size: got 16, expected a multiple of ray.num_workers (3); "
        "change one of them",
    ),
    (
        "runs.tuned.data.block_size",
        2048,
        "runs.tuned.data.block_size: makes sequences of 2048 tokens, expected at most 1024, the "
        "max_position_embeddings of its model; change one of them",
    ),
    (
        "datasets.modules.test_share",
        0,
        "datasets.modules.test_share: got 0, but run base needs test rows for its evaluation",
    ),
]


def test_a_fault_costs_one_line_that_begins_with_its_path() -> None:
    for path, value, line in FAULTS:
        reported = faults({path: value})
        assert [message[: len(line)] for message in reported] == [line], f"{path}: {value}"
        assert "; " in reported[0]
        assert "secret" not in reported[0]
