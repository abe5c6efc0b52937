# In the guest's real root, still in busybox, after the variables that machine.py writes before it:
# folder, release, kernel, modules (to load, in that order), tree, python.
cd /
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mkdir -p /run/lock /run/dbus /lib/modules
ln -sfn "$kernel/lib/modules/$release" "/lib/modules/$release"
hostname guest
/run/busybox ip link set lo up
# The kernel looks there for a codec's patch; see HDMI_CODEC in machine.py.
echo "$folder" >/sys/module/firmware_class/parameters/path
if grep -q hdmi.patch "$folder/hda.conf" 2>/dev/null; then cp "$folder/hda.conf" /etc/modprobe.d/; fi
# One after the other: the first that is loaded gets the first card's number.
for module in $modules; do
    # shellcheck disable=SC2086 # a module with its options
    modprobe ${module//:/ } || echo "no module $module"
done
modprobe virtio_net
/run/busybox ip addr add 10.0.2.15/24 dev eth0
/run/busybox ip link set eth0 up
for port in /sys/class/virtio-ports/*; do
    read -r name <"$port/name"
    [ "$name" != harness ] || channel=/dev/${port##*/}
done
cd "$tree" || exit
"$python" -m tests.harness.guest.inside "$channel" "$folder" >"$folder/inside.log" 2>&1
# The kernel panics when its first process ends, and QEMU ends then: the host learns at once.
