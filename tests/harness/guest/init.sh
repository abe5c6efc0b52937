#!/bin/busybox sh
# The first process of a guest, in its first root, in memory: makes the real one, then runs start.sh
# of this guest, whose folder the kernel's command line names.
#
# The real root is the host's, read-only, under what the guest writes, in memory.
mkdir -p /proc /sys /lower /upper /root
/bin/busybox mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /lower
mount -t tmpfs tmpfs /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root
read -r line </proc/cmdline
folder=${line##*harness=}
mount --move /sys /root/sys
mount --move /dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts "/root$folder"
mount -t tmpfs tmpfs /root/dev/shm
mount -t tmpfs tmpfs /root/run
mount -t devpts devpts /root/dev/pts
# What guest and host write for each other; neither keeps a copy of its own.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none shared "/root$folder"
cp /bin/busybox /root/run/
mount --move /proc /root/proc
exec /bin/busybox switch_root /root /run/busybox sh "$folder/start.sh"
