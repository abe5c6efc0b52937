#!/bin/sh
# The namespaces of a real node: its own mounts, processes, network and cgroups, on this machine's files.
# usage: real_node.sh outside CGROUP HOST FOLDER          (starts the node)
#        real_node.sh enter CGROUP COMMAND [ARGUMENT]...  (puts a program under the node's limits)
#
# FOLDER/lib and FOLDER/log are the node's /var/lib and /var/log and outlive it, as a disk does; /run is
# empty at each start. FOLDER/init.pid appears once all is ready: its process is the node's first, and
# with it everything of the node ends. What it changes, the machine doesn't see.
set -eu
stage=$1 cgroup=$2
tree=/sys/fs/cgroup

# The kernel's cgroup hierarchies: one in version 2, one for each controller in version 1.
hierarchies() {
    if [ -e "$tree/cgroup.procs" ]; then
        echo "$tree"
        return
    fi
    for each in "$tree"/*; do
        [ -L "$each" ] || [ ! -e "$each/cgroup.procs" ] || echo "$each"
    done
}

# Where we are in a hierarchy: the node's cgroup lies in ours, so that it has the limits that we have.
own() {
    awk -F: -v name="$(basename "$1")" -v only="$([ "$1" = "$tree" ] && echo yes)" '
        only || name == "unified" ? $1 == 0 : $2 == name || $2 == "name=" name { print $3; exit }' /proc/self/cgroup
}

enter_cgroup() {
    for hierarchy in $(hierarchies); do
        here=$hierarchy$(own "$hierarchy")
        [ -d "$here/$cgroup" ] || mkdir "$here/$cgroup"
        # A new cpuset is empty, and takes no process.
        for list in cpuset.cpus cpuset.mems; do
            [ "$hierarchy" = "$tree" ] || [ ! -e "$here/$cgroup/$list" ] || cat "$here/$list" >"$here/$cgroup/$list"
        done
        leaf=$here/$cgroup
        [ ! -d "$leaf/init" ] || leaf=$leaf/init
        echo 0 >"$leaf/cgroup.procs"
    done
}

mount_cgroups() {
    if [ -e "$tree/cgroup.procs" ]; then
        umount -R -l "$tree"
        mount -t cgroup2 cgroup2 "$tree"
        mkdir -p "$tree/init"
        for process in $(cat "$tree/cgroup.procs"); do echo "$process" >"$tree/init/cgroup.procs" || true; done
        for controller in $(cat "$tree/cgroup.controllers"); do echo "+$controller" >"$tree/cgroup.subtree_control" || true; done
        return
    fi
    names=$(for each in $(hierarchies); do basename "$each"; done)
    links=$(for each in "$tree"/*; do [ ! -L "$each" ] || echo "$(basename "$each"):$(readlink "$each")"; done)
    umount -R -l "$tree"
    mount -t tmpfs -o mode=755 cgroup "$tree"
    for name in $names; do
        mkdir "$tree/$name"
        case $name in
        unified) mount -t cgroup2 cgroup2 "$tree/$name" ;;
        systemd) mount -t cgroup -o none,name=systemd cgroup "$tree/$name" ;;
        *) mount -t cgroup -o "$name" cgroup "$tree/$name" ;;
        esac
    done
    for link in $links; do ln -s "${link#*:}" "$tree/${link%%:*}"; done
}

# A kubelet sets these for the whole machine: here it sets copies.
shield_settings() {
    mkdir -p "$folder/sysctl"
    for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
        [ -e "/proc/sys/$name" ] || continue
        copy=$folder/sysctl/$(echo "$name" | tr / .)
        cat "/proc/sys/$name" >"$copy"
        mount --bind "$copy" "/proc/sys/$name"
    done
}

case $stage in
enter)
    shift 2
    enter_cgroup
    exec "$@"
    ;;
outside)
    host=$3 folder=$4
    enter_cgroup
    exec unshare --cgroup --mount --pid --net --ipc --uts --fork --kill-child=KILL -- "$0" inside "$cgroup" "$host" "$folder"
    ;;
inside)
    host=$3 folder=$4
    # /proc is still the machine's, so this is what the machine calls us.
    read -r pid _ </proc/self/stat
    mount_cgroups
    mount -t proc -o nosuid,nodev,noexec proc /proc
    shield_settings
    mkdir -p "$folder/lib" "$folder/log"
    mount --bind "$folder/lib" /var/lib
    mount --bind "$folder/log" /var/log
    mount -t tmpfs -o mode=755 run /run
    hostname "$host"
    ip link set lo up
    ip link add eth0 type bridge
    ip address add 10.88.76.1/24 dev eth0
    ip link set eth0 up
    # The address of the cluster's API server service, which no kube-proxy translates here.
    ip address add 10.96.0.1/32 dev lo
    mount --make-rshared /
    echo "$pid" >"$folder/init.pid.new"
    mv "$folder/init.pid.new" "$folder/init.pid"
    # As the first process it takes over, and reaps, whatever lost its parent.
    while :; do
        sleep 3600 &
        wait "$!" || true
    done
    ;;
esac
