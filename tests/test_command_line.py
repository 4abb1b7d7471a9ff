"""The command line: exit status as diff(1), one sentence on trouble, help that helps."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from helpers import diff_json, model, nndiff, run_on_terminal, save
from nndiff.commands import COMMANDS, build_parser, main
from nndiff.commands.options import KEEP, RUN, SHARED_INPUTS
from nndiff.commands.run import get_record_options


@pytest.fixture
def files(tmp_path):
    off = model()
    off["layers.1.linear.bias"] = off["layers.1.linear.bias"] + np.float32(0.5)
    return (
        save(tmp_path / "ref.safetensors", model()),
        save(tmp_path / "same.safetensors", {f"module.{name}": value for name, value in model().items()}),
        save(tmp_path / "off.safetensors", off),
    )


def test_the_exit_status_is_that_of_diff(files, tmp_path):
    ref, same, off = files
    other = save(tmp_path / "other.safetensors", {"stranger": np.ones(5, np.float32)})
    assert nndiff("diff", ref, ref).returncode == 0
    assert nndiff("diff", ref, same).returncode == 0
    assert nndiff("diff", ref, off).returncode == 1
    assert nndiff("diff", ref, off, "--atol", "1").returncode == 0
    assert nndiff("diff", ref, same, off).returncode == 1
    assert nndiff("diff", ref, other).returncode == 2
    assert nndiff("diff", ref, tmp_path / "absent").returncode == 2


@pytest.mark.parametrize(
    "args",
    [
        ["diff"],
        ["diff", "only-one"],
        ["nonsense"],
        ["diff", "a", "b", "--atol", "much"],
        ["diff", "a", "b", "--atol", "-1"],
        ["diff", "a", "b", "--rename", "x"],
        ["diff", "a", "b", "--report", "pdf:x"],
        ["diff", "a", "b", "--report", "json:no/such/folder/x.json"],
        ["diff", "a", "b", "--group", "x"],
        ["diff", "a", "b", "--map", "absent"],
        ["diff", "absent", "b"],
        ["diff", "absent::part", "b"],
        ["diff", "a\0b", "b"],
        ["show", "."],
        ["show", "/dev/null"],
        ["report", "absent.json"],
    ],
)
def test_trouble_is_one_sentence_and_status_two(args, tmp_path):
    args = [arg.replace("\0", "") if arg != "a\0b" else "a" for arg in args]
    done = subprocess.run(
        [sys.executable, "-m", "nndiff", *args], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("nndiff"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "a bug in nndiff" not in done.stderr


def test_without_a_command_the_whole_help_is_printed():
    done = nndiff()
    assert done.returncode == 2
    assert done.stdout == nndiff("--help").stdout
    assert done.stderr == "nndiff: no command given; see `nndiff --help`\n"


def test_the_help_shows_how_models_are_run_and_recorded():
    text = nndiff("--help").stdout
    for command in COMMANDS:
        assert re.search(rf"^    {command} ", text, re.MULTILINE)
    for command in ("diff", "run", "record", "show", "demo"):
        assert f"\n  nndiff {command}" in text.partition("examples:")[2]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["{ref}", "{off}"], "diff {ref} {off}"),
        (["{ref}", "{off}", "--atol", "1"], "diff {ref} {off}"),
        (["absent.pt", "other/absent"], "diff absent.pt other/absent"),
        (["a.ckpt::state_dict", "b.nemo"], "diff a.ckpt::state_dict b.nemo"),
        (["ref.nnrec", "port.py"], "diff ref.nnrec port.py"),
        (["ours.py", "theirs.py:net"], "run ours.py theirs.py:net"),
        (["hf:bert", "theirs.py"], "run hf:bert theirs.py"),
        (["run.py", "port.py"], "run run.py port.py"),
    ],
)
def test_two_paths_without_a_command_are_asked_about(words, meant, files):
    ref, _, off = files
    done = nndiff(*(word.format(ref=ref, off=off) for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    first = words[0].format(ref=ref)
    question = f"(did you mean `nndiff {meant.format(ref=ref, off=off)}`?)"
    assert done.stderr == f"nndiff: unknown command {first!r} {question}; see `nndiff --help`\n"


@pytest.mark.parametrize("words", [["nonsense"], ["nonsense", "absent.pt"], ["nonsense", "more"]])
def test_what_is_neither_a_command_nor_paths_is_only_unknown(words):
    assert nndiff(*words).stderr == "nndiff: unknown command 'nonsense'; see `nndiff --help`\n"


def test_every_exit_two_has_its_sentence(files, tmp_path):
    ref, empty, saved = files[0], save(tmp_path / "empty.safetensors", {}), tmp_path / "x.json"
    stranger = save(tmp_path / "other.safetensors", {"stranger": np.ones(5, np.float32)})
    for args, sentence in (
        (["diff", ref, stranger, "--report", f"json:{saved}"], "nothing compared: no tensor has a partner"),
        (["report", saved, "--quiet"], "nothing compared: no tensor has a partner"),
        (["diff", ref, ref, "--include", "nosuch"], "nothing compared: --include/--exclude left no tensor"),
        (["diff", ref, stranger, "--dry-run"], "no name of the reference is paired with one of a candidate"),
        (["show", empty], f"{empty}: holds no tensors"),
        (["show", ref, "--include", "nosuch"], f"{ref}: --include/--exclude left no tensor to show"),
    ):
        done = nndiff(*args)
        assert done.returncode == 2
        assert done.stdout != "" or "--report" in args
        assert done.stderr.startswith(f"nndiff: {sentence}"), done.stderr
        assert done.stderr.count("\n") == 1


def test_a_fault_of_ours_is_trouble_and_never_a_difference(files, monkeypatch, capsys):
    def broken(args):
        raise ZeroDivisionError("nobody\nforesaw this")

    monkeypatch.setattr("nndiff.commands.diff.run", broken)
    monkeypatch.delenv("NNDIFF_TRACEBACK", raising=False)
    assert main(["diff", *files[:2]]) == 2
    said = capsys.readouterr().err
    assert said.startswith("nndiff: ZeroDivisionError: nobody foresaw this: this is a bug in nndiff; set NNDIFF_TRACE")
    assert said.count("\n") == 1
    monkeypatch.setenv("NNDIFF_TRACEBACK", "1")
    assert main(["diff", *files[:2]]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "in broken" in said
    assert said.endswith("this is a bug in nndiff\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command):
    done = nndiff(command, "--help")
    assert done.returncode == 0
    assert f"\nexamples:\n  nndiff {'diff' if command == 'report' else command} " in done.stdout


def test_the_json_report_holds_what_the_contract_says(files):
    ref, _, off = files
    status, data = diff_json(ref, off)
    assert (status, data["exit_code"], data["verdict"]) == (1, 1, "different")
    assert (data["format"], data["version"], data["kind"]) == ("nndiff.comparison", 2, "checkpoint")
    assert data["tolerance"] == {"atol": 1e-05, "rtol": 1e-05, "origin": "default", "overrides": []}
    assert (data["totals"]["pairs"], data["totals"]["different"]) == (9, 1)
    (worst,) = [pair for pair in data["pairs"] if pair["verdict"] == "different"]
    assert worst["name"] == "layers.1.linear.bias"
    assert worst["metrics"]["max_abs"] == pytest.approx(0.5, abs=1e-6)
    wanted = (
        "count max_abs max_abs_index max_rel mean_abs mse rmse rel_mse rel_mae l2 rel_l2 cosine correlation sqnr_db "
        "p50 p90 p95 p99 mismatched nonfinite_ref nonfinite_cand ref_mean ref_std ref_min ref_max cand_mean cand_std "
        "cand_min cand_max diff_mean diff_std"
    )
    assert set(wanted.split()) <= set(worst["metrics"])


def test_a_saved_result_is_rendered_and_judged_again(files, tmp_path):
    ref, _, off = files
    saved = tmp_path / "result.json"
    assert nndiff("diff", ref, off, "--report", f"json:{saved}").returncode == 1
    assert nndiff("report", saved).returncode == 1
    assert nndiff("report", saved, "--atol", "1").returncode == 0
    page = tmp_path / "page.html"
    assert nndiff("report", saved, "--report", f"html:{page}", "--atol", "1").returncode == 0
    assert page.read_text().startswith("<!doctype html>")


def test_a_dry_run_says_how_names_belong_together(tmp_path):
    ref = save(tmp_path / "ref.safetensors", {"a.w": np.ones((2, 2), np.float32), "x": np.ones(3, np.float32)})
    cand = save(tmp_path / "cand.safetensors", {"module.a.w": np.ones((2, 2), np.float32), "y": np.ones(3, np.float32)})
    assert "x <- y  [3]  by content" in nndiff("diff", ref, cand, "--dry-run").stdout
    done = nndiff("diff", ref, cand, "--dry-run", "--no-content")
    assert done.returncode == 1
    assert "a.w <- module.a.w  [2, 2]  by prefix" in done.stdout
    assert "only in the reference: x" in done.stdout
    assert "only in the candidate: y" in done.stdout
    assert nndiff("diff", ref, ref, "--dry-run").returncode == 0


def test_show_lists_names_shapes_dtypes_and_statistics(files):
    done = nndiff("show", files[0], COLUMNS="160")
    assert done.returncode == 0
    assert re.search(r"layers\.0\.linear\.weight +\[8, 8\] +float32 +-?\d", done.stdout)
    data = json.loads(nndiff("show", files[0], "--json").stdout)
    by_name = {each["name"]: each for each in data["tensors"]}
    truth = model()["layers.2.linear.weight"].astype(np.float64)
    assert by_name["layers.2.linear.weight"]["mean"] == pytest.approx(truth.mean(), rel=1e-12)
    assert by_name["layers.2.linear.weight"]["std"] == pytest.approx(truth.std(), rel=1e-12)


def test_a_report_never_overwrites_a_source(files):
    done = nndiff("diff", files[0], files[1], "--report", f"json:{files[1]}")
    assert done.returncode == 2
    assert nndiff("diff", files[0], files[1]).returncode == 0


def test_a_closed_pipe_is_no_traceback(files):
    command = f"{sys.executable} -m nndiff diff {files[0]} {files[2]} --verbose | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


def test_names_cannot_speak_to_the_terminal(tmp_path):
    bad = save(tmp_path / "bad.safetensors", {"a\x1b]0;owned\x07\x1b[31m": np.ones(1, np.float32)})
    for args in (["show", bad], ["diff", bad, bad, "--verbose"], ["diff", bad, bad, "--dry-run"]):
        done = nndiff(*args, FORCE_COLOR="")
        assert not set("\x1b\x07") & set(done.stdout)
        assert "\\x1b" in done.stdout


def test_the_version_says_which_engine_is_in_use():
    assert nndiff("--version").stdout.count("\n") == 1
    assert re.search(r"engine: (native|numpy)", nndiff("--version", "-v").stdout)


def test_colour_is_for_terminals_and_tables_fit(files):
    args = [sys.executable, "-m", "nndiff", "diff", files[0], files[2], "--verbose"]
    for width in (50, 80, 120):
        shown = run_on_terminal(args, width)
        assert "\x1b[" in shown
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
        assert max(len(line) for line in plain.splitlines()) <= width
    assert "\x1b[" not in nndiff(*args[3:]).stdout


@pytest.mark.parametrize(
    "words",
    [["show", "REF"], ["show", "REF", "--json"], ["diff", "REF", "REF", "--dry-run"], ["--help"], ["--version"]],
)
@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
def test_standard_output_that_takes_nothing_is_one_sentence(words, where, files):
    line = " ".join([sys.executable, "-m", "nndiff", *(files[0] if word == "REF" else word for word in words), where])
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"nndiff: [^\n]*standard output: [^\n]*\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["diff", "REF", "OFF", "--toip", "3"],
            "nndiff diff: unknown option --toip (did you mean --top?); see `nndiff diff",
        ),
        (["diff", "REF", "OFF", "--toip=3"], "unknown option --toip (did you mean --top?)"),
        (["diff", "REF", "OFF", "--zzz"], "unknown option --zzz; see `nndiff diff --help`"),
        (["show", "REF", "more"], "nndiff show: unexpected argument 'more'; see `nndiff show --help`"),
        (["dif", "REF", "OFF"], "unknown command 'dif' (did you mean diff?)"),
        (["diff", "", "OFF"], "argument REF: the path is empty"),
        (["diff", "REF", "OFF", ""], "argument CAND: the path is empty"),
        (["show", ""], "the path is empty"),
        (["report", ""], "the path is empty"),
        (["diff", "REF", "OFF", "--map", ""], "the path is empty"),
        (["diff", "REF", "OFF", "--ckpt", "nosuch"], "--ckpt would do nothing"),
        (["diff", "REF", "OFF", "--mode", "eval", "--python", "x"], "--python and --mode would do nothing"),
        (["diff", "REF", "OFF", "--config", "x"], "--config would do nothing"),
        (["diff", "REF", "OFF", "--dry-run", "--report", "json"], "drop --report or --dry-run"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_way_out(words, said, files):
    named = {"REF": files[0], "OFF": files[2]}
    done = nndiff(*(named.get(word, word) for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ['{"a": "b", "a": "c"}', "a => b\na => c\n"])
def test_a_name_mapped_twice_is_refused(text, files, tmp_path):
    (tmp_path / "map").write_text(text)
    done = nndiff("diff", files[0], files[2], "--map", tmp_path / "map")
    assert done.returncode == 2
    assert "'a' is mapped twice" in done.stderr


def test_filters_that_leave_nothing_are_named(files, tmp_path):
    done = nndiff("diff", files[0], files[2], "--include", "nosuch", "--quiet")
    assert done.stdout == "? nothing compared: --include/--exclude left no tensor to compare (exit 2)\n"
    empty = save(tmp_path / "empty.safetensors", {})
    assert "there are no tensors" in nndiff("diff", empty, empty, "--include", "nosuch", "--quiet").stdout


def test_show_counts_and_zeros_are_plain(tmp_path):
    one = save(tmp_path / "one.safetensors", {"zeros": np.array([-0.0, -0.0], np.float32)})
    done = nndiff("show", one)
    assert "safetensors, 1 tensor\n" in done.stdout
    table = done.stdout.partition("\n\n")[2]  # the lines above name the temporary folder, whatever it is called
    assert "zeros" in table
    assert not re.search(r"-0\b", table)
    two = save(tmp_path / "two.safetensors", {"a": np.ones(1, np.float32), "b": np.ones(1, np.float32)})
    assert "safetensors, 2 tensors\n" in nndiff("show", two).stdout


def test_the_quiet_verdict_is_one_line_however_narrow(files):
    assert nndiff("diff", files[0], files[2], "--quiet", COLUMNS="20").stdout.count("\n") == 1
    assert nndiff("diff", files[0], files[2], COLUMNS="20").stdout.count("\n") > 1


def test_options_that_run_passes_on_mean_the_same_to_record():
    parser = build_parser()
    given = "--seed 7 --backward --mode train --dropout off --repeat 3 --deterministic --batch-size 4 --seq-len 5"
    given += " --device cpu --dtype float64 --keep stats --keep full:fc* --depth 2 --leaves --params --inputs"
    given += " --input -x=float32[2] --ref-ckpt a.pt --ref-config a.yaml"
    args = parser.parse_args(["run", "a.py", "b.py", *given.replace("--input ", "--input=").split()])
    words = get_record_options(args, "ref", args.input)
    recorded = vars(parser.parse_args(["record", "a.py", "-o", "out", *words]))
    for group in (RUN, KEEP, SHARED_INPUTS):
        for option in group.options:
            if option.attribute != "own_inputs":
                value = getattr(args, option.attribute)
                assert value not in (None, False, []), "every option is tried"
                assert recorded[option.attribute] == value
    assert (recorded["ckpt"], recorded["config"]) == ("a.pt", "a.yaml")
