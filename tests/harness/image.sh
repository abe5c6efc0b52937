#!/bin/sh
# The inside of a container of our image, as its manifest asks for one; runs as root in fresh mount, PID,
# network, IPC and UTS namespaces.
#
# usage: image.sh ROOT RUN USER GROUP COMMAND [ARGUMENT]...
#
# ROOT is the unpacked image and becomes the read-only root; RUN is the host's folder that the pod's
# containers share; POD in the environment is the pod's name. No capability is left, and none can be had again.
set -eu

root=$1 run=$2 user=$3 group=$4
shift 4
[ -z "${POD:-}" ] || echo "$POD" >/proc/sys/kernel/hostname
mount --bind "$root" "$root"
cd "$root"
mount -t tmpfs -o mode=0755,size=8m tmpfs dev
mkdir dev/shm
mount -t tmpfs -o mode=1777,size=64m tmpfs dev/shm
for name in null zero full random urandom; do
    : >"dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t tmpfs -o mode=0755,size=8m tmpfs run
mkdir run/audio.liken.sh
mount --bind "$run" run/audio.liken.sh
mount -o remount,bind,ro "$root"
# The root of this shell is older than the bind mount: it has to be entered anew.
cd "$root"
exec chroot . /usr/bin/setpriv --reuid "$user" --regid "$group" --clear-groups --bounding-set=-all --inh-caps=-all --pdeathsig KILL \
    --no-new-privs -- "$@"
