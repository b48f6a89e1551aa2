from small_config import HUB, MADE_UP, ON_THE_FLY, TABLE, URL, check_faults

TAIL = {"source": "files", "path": "x", "split_by": "tail", "format": "prompt-completion"}

# What is set at a path, and how the one line that it costs goes on from there.
FAULTS: list[tuple[str, object, str]] = [
    # Misspelt keys, at every level.
    ("modles", {}, ": unknown key; did you mean models?"),
    ("zzz", 1, ": unknown key; expected one of datasets, models, defaults, runs"),
    ("5", 1, ": unknown key; expected one of datasets, models, defaults, runs"),
    ("datasets.modules.formt", "text", ": unknown key; did you mean format?"),
    ("models.tiny.tokenizer.vocabsize", 300, ": unknown key; did you mean vocab_size?"),
    ("defaults.trian", {}, ": unknown key; did you mean train?"),
    ("defaults.train.learnig_rate", 1, ": unknown key; did you mean learning_rate?"),
    ("runs.tuned.train.learnig_rate", 1, ": unknown key; did you mean learning_rate?"),
    ("runs.tuned.model.rum", "base", ": unknown key; did you mean run?"),
    ("runs.tuned.adapter", {"rnk": 8}, ".rnk: unknown key; did you mean rank?"),
    # An entry may have the name of a key.
    (
        "runs.train",
        {"model": "tiny", "dataset": "modules", "train": {"sed": 1}},
        ".train.sed: unknown key; did you mean seed?",
    ),
    (
        "models.path",
        {"source": "path", "path": "x", "paht": "x"},
        ".paht: unknown key; did you mean path?",
    ),
    (
        "defaults.data.chat_template",
        "chatml",
        ": got 'chatml', expected the text of a Jinja template, which has {{ or {%, in the lines "
        "below chat_template: |, or the path of a .jinja file; see defaults in "
        "docs/configuration.md",
    ),
    (
        "defaults.data.chat_template",
        "config/chatml.jinja",
        ": there is no file config/chatml.jinja; check the path; it is relative to the working "
        "directory",
    ),
    (
        "defaults.data.template_variables",
        {"tools": "none"},
        ".tools: follows from the row and the tokenizer; remove it",
    ),
    (
        "defaults.data.template_variables",
        {"enable thinking": False},
        ".enable thinking",
    ),
    ("defaults.data.turns", "all", ": got 'all', expected 'together' or 'each'"),
    # A key of another source is unknown here, and no hint names it.
    ("models.folder.hidden_size", 8, ": unknown key; expected one of "),
    ("models.tiny.path", "x", ": unknown key; expected one of source, arch"),
    ("models.tiny.eos_token", "x", ": unknown key; expected one of source, arch"),
    ("datasets.modules.split_by", "tail", ": unknown key; expected one "),
    # Misspelt values, also of sources.
    (
        "defaults.train.gradient_checkpointing",
        "offlaod",
        ": got 'offlaod', expected true or false or 'offload'; did you mean offload?",
    ),
    (
        "defaults.train.gradient_checkpointing",
        "ture",
        ": got 'ture', expected true or false or 'offload'; did you mean true?",
    ),
    (
        "runs.tuned.train.strategy",
        "fsdp",
        ": got 'fsdp', expected 'ddp', 'fsdp2' or 'deepspeed'; did you mean fsdp2?",
    ),
    ("models.folder.source", "paht", ": got 'paht', expected one of "),
    # Seeds that PyTorch doesn't take.
    *(
        (
            key,
            2**64,
            ": got 18446744073709551616, expected less than 18446744073709551616; ",
        )
        for key in (
            "defaults.train.seed",
            "models.tiny.seed",
            "runs.base.generate.seed",
        )
    ),
    # Wrong types.
    (
        "defaults.train.learning_rate",
        "fast",
        ": got 'fast', expected a number; see defaults in docs/configuration.md",
    ),
    ("defaults.train.max_steps", 1.5, ": got 1.5, expected a whole number; "),
    (
        "runs.base.train.max_steps",
        "ten",
        ": got 'ten', expected a whole number; see runs in docs/configuration.md",
    ),
    ("models.tiny.tie_word_embeddings", "perhaps", ": got 'perhaps', expected true or false; "),
    ("defaults.ray.use_gpu", "maybe", ": got 'maybe', expected 'auto' or true or false; "),
    ("defaults.ray.resources_per_worker", [1], ": got [1], expected a mapping; "),
    (
        "defaults.ray.resources_per_worker",
        {"CPU": "all"},
        ".CPU: got 'all', expected 'auto' or a number; ",
    ),
    (
        "defaults.ray.resources_per_worker",
        {"GPU": "auto"},
        ".GPU: got auto, expected a number, because only CPU can be auto; set it to the number ",
    ),
    ("datasets.notes.path", 5, ": got 5, expected text or a list or a mapping; "),
    ("datasets.notes.path", ["a", 5], ".1: got 5, expected text; "),
    ("datasets.notes", "notes.txt", ": got 'notes.txt', expected a mapping; "),
    ("defaults", None, ": got None, expected a mapping; "),
    ("defaults.train", 5, ": got 5, expected a mapping; "),
    ("runs", [], ": got [], expected a mapping; see runs in docs/configuration.md"),
    ("runs.tuned", 5, ": got 5, expected a mapping; "),
    ("runs.tuned.ray", None, ": got None, expected a mapping; "),
    ("runs.tuned.model", 5, ": got 5, expected text or a mapping; "),
    ("runs.tuned.model", {"run": 5}, ".run: got 5, expected text; "),
    # Locations by split.
    ("datasets.notes.path", {"train": "a", "tset": "b"}, ".tset: unknown key; did you mean test?"),
    (
        "datasets.notes.path",
        {"train": "a", "zzz": "b"},
        ".zzz: unknown key; expected one of train, validation, test",
    ),
    ("datasets.notes.path", {"train": 3}, ".train: got 3, expected text or a l"),
    (
        "datasets.notes.path",
        {"train": "a", "test": ["b", 3]},
        ".test.1: got 3, expected text; see datasets in docs/configuration.md",
    ),
    ("runs.base.dataset", {"modules": 0}, ".modules: got 0, expected more than 0"),
    ("runs.base.dataset", {"modules": "x"}, ".modules: got 'x', expected a num"),
    ("runs.base.dataset", ["modules"], ": got ['modules'], expected text or a m"),
    ("runs.base.dataset", {}, ": got a mapping, expected text or at least"),
    ("datasets.notes.path", {"test": "a"}, ".train: missing; add it, "),
    ("datasets.notes.path", {}, ".train: missing; add it, "),
    ("datasets.notes.path", {"train": []}, ".train: got [], expected text or "),
    *(
        ("defaults.data.stream_from", folder, f": got {folder!r}, expected ")
        for folder in ("bucket/folder", "/shared/folder", "s3:/bucket", "://bucket")
    ),
    ("datasets.x", {**URL, "url": 3}, ".url: got 3, expected text or a list or a mapp"),
    (
        "datasets.x",
        {**HUB, "split": {"train": "a", "tset": "b"}},
        ".split.tset: unknown key; did you mean test?",
    ),
    (
        "datasets.x",
        {**HUB, "split": {"train": ["a"]}},
        ".split.train: got ['a'], expected text; see ",
    ),
    ("datasets.x", {**HUB, "split": 3}, ".split: got 3, expected text or a mapping; "),
    ("datasets.x", {**HUB, "split": {"test": "a"}}, ".split.train: missing; add it, see "),
    # Values out of range.
    ("defaults.train.learning_rate", -1, ": got -1, expected more than 0; "),
    ("defaults.train.num_epochs", float("inf"), ": got inf, expected a finite number; "),
    ("defaults.train.warmup_ratio", 1, ": got 1, expected less than 1;"),
    ("defaults.train.min_lr_ratio", 2, ": got 2, expected at most 1;"),
    ("runs.base.train.seed", -1, ": got -1, expected at least 0; "),
    ("runs.base.ray.num_workers", 0, ": got 0, expected 'auto' or more than 0 or a mapping; "),
    (
        "models.tiny.tokenizer.vocab_size",
        100,
        ": got 100, expected at least 258; see models in docs/configuration.md",
    ),
    ("datasets.notes.path", [], ": got [], expected text or at least 1 entry or a mapping; "),
    ("datasets.notes.test_share", 1, ": got 1, expected less than 1; "),
    # Words that are not among those known.
    ("defaults.train.strategy", "dpp", ": got 'dpp', expected 'ddp'"),
    ("defaults.train.precision", "fp16", ": got 'fp16', expected 'auto', 'bf16' or 'fp32'; "),
    ("datasets.notes.source", "file", ": got 'file', expected one of 'python-stdlib', 'files'"),
    # What has to be there.
    ("datasets.x", {"source": "files"}, ".path: missing; add it, see "),
    ("datasets.x", {"path": "x"}, ".source: missing; add it, see "),
    ("models.x", {"source": "path"}, ".path: missing; add it, see mo"),
    (
        "models.x",
        {"source": "path", "path": "x", "new_tokens": ["<a>", "<a>"]},
        ".new_tokens: got an empty or a repeated token; remove it",
    ),
    (
        "models.x",
        {"source": "path", "path": "x", "new_tokens": ["<a>"], "classes_of": "modules"},
        ".new_tokens: only for models of text; remove it or classes_of",
    ),
    ("models.x", {"source": "scratch"}, ".tokenizer: missing; add it, "),
    ("runs.x", {"model": "tiny"}, ".dataset: missing; add it, see runs "),
    ("runs.tuned.model", {}, ".run: missing; add it, see runs "),
    # Text of another form.
    ("models.x", {**HUB, "revision": "main"}, ".revision: got 'main', expected the hash"),
    ("models.x", {**HUB, "repo_id": "a/b/c"}, ".repo_id: got 'a/b/c', expected text of "),
    (
        "runs.my run",
        {"model": "tiny", "dataset": "modules"},
        ": got 'my run', expected text of the form ",
    ),
    # Names that nothing has.
    (
        "runs.tuned.dataset",
        "function",
        ": got function, expected a name under datasets; did you mean functions?",
    ),
    ("runs.base.model", "huge", ": got huge, expected a name under models; add it under models"),
    (
        "runs.tuned.model",
        "base",
        ": got base, which is under runs, expected a name under models; write {run: base} for",
    ),
    (
        "runs.tuned.model",
        {"run": "bse"},
        ".run: got bse, expected a name under runs; did you mean base?",
    ),
    (
        "models.tiny.tokenizer.train_on",
        "module",
        ": got module, expected a name under datasets; did you mean modules?",
    ),
    (
        "runs.base.model",
        {"run": "base"},
        ".run: runs form a cycle (base <- base); give one of them a base model from models",
    ),
    ("datasets.x", {"source": "synthetic"}, ".size_gb: missing; "),
    ("datasets.x", {**MADE_UP, "size_gb": 0}, ".size_gb: got 0, expected more than 0; "),
    ("datasets.x", {**URL, "sha256": "abc"}, ".sha256: got 'abc', expected a SHA-256, "),
    # Keys at odds with one another.
    (
        "datasets.x",
        {**TABLE, "columns": {"txt": "body"}},
        ".columns.txt: format text doesn't have this column, only text; "
        "rename the key or change the format",
    ),
    (
        "datasets.x",
        {**HUB, "format": "instruction", "columns": {"prompt": "q"}},
        ".columns.prompt: format instruction doesn't have this column, only "
        "instruction, input, output, system, history; rename the key or change the format",
    ),
    ("datasets.x", {**TABLE, "columns": {"text": 3}}, ".columns.text: got 3, expected t"),
    (
        "datasets.x",
        {**TABLE, "system": "Be brief."},
        ".system: a system prompt needs format: instruction, messages or preference, got "
        "format: text; remove it or change the format",
    ),
    *(
        (
            "datasets.x",
            {**URL, "url": url, "sha256": "0" * 64},
            ".sha256: got one digest for 2 URLs, expected a single URL; "
            "remove it, or make each URL a dataset",
        )
        for url in (["a", "b"], {"train": "a", "test": "b"})
    ),
    *(
        (
            f"{section}.data.{key}",
            value,
            f": {value} needs loader: stream, got loader: memory; change one of them",
        )
        for section in ("defaults", "runs.tuned")
        for key, value in (("tokenize", "on-the-fly"), ("stream_from", "s3://bucket/folder"))
    ),
    (
        "defaults.data",
        {**ON_THE_FLY, "loader": "stream", "stream_from": "s3://bucket/folder"},
        ".stream_from: needs tokenize: ahead, because tokenize: on-the-fly stores "
        "no tokens to copy; change one of them",
    ),
    (
        "models.tiny.hidden_size",
        250,
        ": got 250, expected an even multiple of num_attention_heads (4); change one of them",
    ),
    (
        "models.tiny.num_key_value_heads",
        3,
        ": got 3, expected a divisor of num_attention_heads (4); change one of them",
    ),
    (
        "runs.base.train",
        {"gradient_checkpointing": "offlaod"},
        ".gradient_checkpointing: got 'offlaod', expected true or false or 'offload'; did you mean "
        "offload?",
    ),
    (
        "datasets.x",
        TAIL,
        ".split_by: tail needs format: text, got format: prompt-completion; set split_by: hash",
    ),
    (
        "datasets.x",
        {"source": "files", "path": "x", "split_by": "tail", "deduplicate": "exact"},
        ".deduplicate: exact needs split_by: hash, as split_by: tail cuts one text; remove one of "
        "both",
    ),
    (
        "datasets.x",
        {"source": "files", "path": "x", "format": "preference", "deduplicate": "near"},
        ".deduplicate: near needs format: text, prompt-completion, instruction, messages, got "
        "format: preference, whose rows differ in more than their words; set it to exact",
    ),
    *(
        (
            "datasets.x",
            {"source": "files", "path": "x", "encoding": name},
            f".encoding: Python doesn't know '{name}' as one of text; write a name such as utf-8, "
            "cp1252 or utf-16",
        )
        for name in ("latin9x", "base64", "")
    ),
    (
        "datasets.x",
        {"source": "files", "path": "x", "format": "images", "max_rows": 5},
        ".max_rows: only for tables and text, not for images; remove it",
    ),
    (
        "datasets.x",
        {"source": "files", "path": "x", "delimiter": ", "},
        ".delimiter: got ', ', expected one character, which is no quote",
    ),
    (
        "datasets.x",
        {"source": "files", "path": "x", "max_bad_rows": 0.05},
        ".max_bad_rows: only for bad_rows: drop; set that too, or remove max_bad_rows",
    ),
    (
        "datasets.x",
        {"source": "files", "path": "x", "split_by": "tail", "columns": {"group": "patient"}},
        ".columns.group: split_by: tail cuts the text where a share ends, and can't keep groups "
        "together; remove columns.group, or set split_by: hash",
    ),
    (
        "runs.base",
        {"model": "tiny", "dataset": "modules", "ray": {"num_workers": 3}},
        ".train.global_batch_size: got 16, expected a multiple of ray.num_workers (3); "
        "change one of them",
    ),
    (
        "runs.tuned.data.block_size",
        2048,
        ": makes sequences of 2048 tokens, expected at most 1024, the "
        "max_position_embeddings of its model; change one of them",
    ),
    ("datasets.modules.test_share", 0, ": got 0, but run base needs test rows for its evaluation"),
]


def test_a_fault_costs_one_line_that_begins_with_its_path() -> None:
    for path, value, rest in FAULTS:
        check_faults({path: value}, path + rest)
