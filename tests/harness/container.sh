#!/bin/sh
# The inside of a stand-in container; runs as root in fresh mount, PID, network and IPC namespaces.
# usage: container.sh ROOT USER [SOURCE TARGET OPTIONS]... -- COMMAND [ARGUMENT]...
# ROOT is an empty folder. The root file system is read-only and holds the machine's /usr and /etc
# (the "image"), an empty /tmp and /run, and the given mounts: no other path of the machine.
set -eu
root=$1 user=$2
shift 2
mount -t tmpfs -o mode=0755,size=64m tmpfs "$root"
cd "$root"
mkdir dev etc old proc run tmp usr var
mount --bind -o ro /usr usr
mount --bind -o ro /etc etc
for name in bin lib lib64 sbin; do
    [ ! -L "/$name" ] || ln -s "$(readlink "/$name")" "$name"
done
for name in full null random urandom zero; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t tmpfs -o mode=1777,size=64m tmpfs tmp
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then
        mkdir -p ".$2"
    else
        mkdir -p ".$(dirname "$2")"
        touch ".$2"
    fi
    mount --bind -o "$3" "$1" ".$2"
    shift 3
done
shift
/usr/sbin/pivot_root . old
umount -l /old
rmdir /old
rm -rf /run/mount # libmount keeps notes there
mount -n -o remount,ro /
# Changing the user cleared the wish to die with the parent, so it is said again.
exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set -all --inh-caps -all --pdeathsig KILL -- "$@"
