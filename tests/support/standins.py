"""Programs that stand in for ssh, Slurm and kubectl, and run what they are given on our nodes."""

from __future__ import annotations

import json

from tests.support.nodes import Nodes

__all__ = ["add_stand_ins"]

_SSH = 'while [ "${1#-}" != "$1" ]; do shift 2; done; host=${1#*@}; shift'
_SRUN = """
for word in "$@"; do
    case $word in
        --overlap) overlap=1 ;;
        --nodelist=*) host=${word#--nodelist=} ;;
        --jobid=77) job=1 ;;
    esac
done
[ "$overlap$job" = 11 ] || exit 3
while [ "${1#-}" != "$1" ]; do shift; done
"""
_KUBECTL = """
if [ "$1" = --namespace ]; then [ "$2" = serving ] || exit 4; shift 2; fi
case $1 in
    get) [ "$3" = --selector=app=vllm ] && exec cat "FOLDER/pods.json"; exit 5 ;;
    debug) echo "$@" >> "FOLDER/debugged"; exit 0 ;;
    exec) host=$2; shift 2; while [ "$1" != -- ]; do shift; done; shift ;;
esac
"""
_PODS = (("node-a", "Running"), ("node-c", "Pending"), ("node-b", "Running"))


def add_stand_ins(nodes: Nodes) -> None:
    """Add them to the programs of some nodes."""
    nodes.stand_in("ssh", _SSH, 'sh -c "$*"')
    nodes.stand_in("srun", _SRUN, '"$@"')
    nodes.stand_in("kubectl", _KUBECTL.replace("FOLDER", str(nodes.folder)), '"$@"')
    nodes.program("squeue", '[ "$4" = 77 ] && echo "node-[a-b]"')
    nodes.program("scontrol", '[ "$3" = "node-[a-b]" ] && printf "node-a\\nnode-b\\n"')
    pods = [{"metadata": {"name": name}, "status": {"phase": phase}} for name, phase in _PODS]
    (nodes.folder / "pods.json").write_text(json.dumps({"items": pods}))
