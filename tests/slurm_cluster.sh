#!/bin/bash
# A real SLURM of two nodes, `one` and `two`, on this machine: slurm_cluster.sh FOLDER COMMAND... runs a command in it.
# Daemons, addresses and host names lie in namespaces of their own, and all of it ends with the command. Needs root and
# Debian's slurmctld, slurmd, slurm-client and munge. Both nodes say that they have eight cores.
# A job that is queued again waits until credentials of its first run expire: 5 s here instead of 120.
set -euo pipefail
if [ "${1:-}" != --inside ]; then
  exec unshare --mount --net --uts --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
folder=$2
shift 2
mkdir -p "$folder/state" "$folder/spool"
ip link set lo up
ip addr add 10.213.78.1/32 dev lo # the resolver finds nothing where all addresses are 127.0.0.1
echo '127.0.0.1 localhost one two' >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
hostname one
(umask 077 && head -c 128 /dev/urandom >"$folder/key")
cat >"$folder/slurm.conf" <<END
ClusterName=jaxperf
SlurmctldHost=one(127.0.0.1)
AuthInfo=socket=$folder/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName=one NodeHostname=one NodeAddr=127.0.0.1 Port=17001 CPUs=8
NodeName=two NodeHostname=one NodeAddr=127.0.0.1 Port=17002 CPUs=8
PartitionName=main Nodes=ALL Default=YES
END
export SLURM_CONF=$folder/slurm.conf
munged --force --key-file="$folder/key" --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" \
  --log-file="$folder/munge.log" --seed-file="$folder/munge.seed" 2>"$folder/munge.err"
slurmctld
slurmd -N one
slurmd -N two
for _ in {1..100}; do
  [ "$(sinfo --noheader --states=idle --format=%D)" != 2 ] || break
  sleep 0.1
done
"$@"
