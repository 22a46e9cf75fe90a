#!/usr/bin/env bash
# Runs built fuzzers on a machine without Rust: `run.sh OUTDIR SECONDS` with the programs in `bin` beside this file, and
# `corpus` and `dictionaries` as in the repository. All at once, under nice; at the end a table, and the findings in OUTDIR.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?run.sh OUTDIR SECONDS}
seconds=${2:?run.sh OUTDIR SECONDS}
mkdir -p "$out"
out=$(cd "$out" && pwd)
pids=()
for program in "$here"/bin/*; do
    name=$(basename "$program")
    mkdir -p "$out/$name/corpus" "$out/$name/findings"
    nice -n 19 "$program" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
        -dict="$here/dictionaries/$name.dict" -artifact_prefix="$out/$name/findings/" \
        "$out/$name/corpus" "$here/corpus/$name" >"$out/$name/log" 2>&1 </dev/null &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    # A finding ends a program with an error; the table tells of it.
    wait "$pid" || true
done
{
    printf '%-14s %12s %8s %9s\n' target executions corpus findings
    for program in "$here"/bin/*; do
        name=$(basename "$program")
        count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$name/log")
        printf '%-14s %12s %8s %9s\n' "$name" "${count:-?}" "$(find "$out/$name/corpus" -type f | wc -l)" \
            "$(find "$out/$name/findings" -type f | wc -l)"
    done
} | tee "$out/table"
