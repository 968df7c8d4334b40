#!/bin/bash
# experiments/train.py on two nodes, a process per GPU: `sbatch deploy/slurm.sh`, or `sbatch --nodes=4 deploy/slurm.sh`.
# Flags after the script's name are added to its command: `sbatch deploy/slurm.sh --model resnet18`. The name of your own
# program replaces the command: `sbatch deploy/slurm.sh mine.py --flag`.
# A job that is stopped (a lost node, a job that comes first, its time) goes on from its last checkpoint when SLURM queues
# it again, by itself or by `scontrol requeue`. Without GPUs: `sbatch --gpus-per-task=0 deploy/slurm.sh`.
#SBATCH --job-name=jaxperf
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=00:30:00
#SBATCH --output=jaxperf-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=TERM@60
#SBATCH --requeue
set -euo pipefail

# The folder of the checkout, and of .venv in it, must be the same on all nodes.
cd "${SLURM_SUBMIT_DIR:?start this script with sbatch}"
case ${1:--} in -*)
  set -- experiments/train.py --json "results/train-$SLURM_JOB_ID.json" \
    --checkpoints "checkpoints/$SLURM_JOB_ID" --resume "$@"
  ;;
esac

# A proxy can keep the processes from meeting: they talk to each other by gRPC.
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY

# JAX reads from SLURM's variables how many processes there are, which one each is, and where the first one is.
# Where one fails, the others are ended, but not at once: SLURM loses what a task writes in its last moment if the others
# end then. The log has the number of a line's process in front. SIGTERM is for Python; bash only waits.
waits='trap : TERM; "$@" || { status=$?; sleep 2; exit $status; }'
exec srun --kill-on-bad-exit=1 --label bash -c "$waits" bash .venv/bin/python "$@"
