#!/bin/sh
# One step of a bisection: runs a job under tracing and says whether its ranks kept together.
#
#     git bisect run sh step.sh torchrun --nproc-per-node 4 train.py
#
# Exits with 0 if they agree, 1 if they diverged or hung, 125 (git: skip) if that is undecided.
rings=$(mktemp -d)
trap 'rm -rf "$rings"' EXIT

ncclscope run --dir "$rings" -- "$@" &
job=$!
# A job that hangs would not end by itself.
ncclscope watch "$rings" --until-divergence --kill >/dev/null 2>&1 &
watch=$!

wait "$job"
kill "$watch" 2>/dev/null
wait "$watch" 2>/dev/null

ncclscope diagnose "$rings"
status=$?
[ "$status" -gt 1 ] && exit 125
exit "$status"
