#!/usr/bin/env bash
# Builds the image: image/build.sh [--base debian|debootstrap|IMAGE] [--archive FILE] [NAME:TAG]
#
#   --base     debian       Debian 13's image from the registry (default, where the registry answers)
#              debootstrap  the same made here from Debian's packages; needs root and debootstrap
#              IMAGE        any other image of Debian 13, by tag or digest
#   --archive  also writes the image to FILE, for `ctr images import`, `k3s ctr images import`, `podman load`
#
# BUILDER names buildah, podman or docker; else the first of them that works is used. PIP_INDEX_URL and
# PIP_FIND_LINKS are passed on to pip, and so is the file that PIP_CERT names.
#
# Layers and the base are kept in ${LIKEN_AUDIO_CACHE:-${XDG_CACHE_HOME:-~/.cache}/liken-audio} (buildah) or where
# the builder keeps them.
set -Eeuo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${LIKEN_AUDIO_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/liken-audio}
release=trixie
registry_image=docker.io/library/debian:$release-slim
made_image=docker.io/library/debian:$release-slim-made-here
most_megabytes=3000
base=
archive=
name=

say() { printf '%s\n' "$*" >&2; }
fail() {
    say "image: $*"
    exit 1
}

# What buildah mounts is gone with it, also when it is killed.
if [ "$(id -u)" = 0 ] && [ -z "${LIKEN_AUDIO_OWN_MOUNTS:-}" ] && unshare --mount true 2>/dev/null; then
    export LIKEN_AUDIO_OWN_MOUNTS=1
    case ${BUILDER:-buildah} in buildah) exec unshare --mount --propagation private -- "${BASH_SOURCE[0]}" "$@" ;; esac
fi

while [ $# -gt 0 ]; do
    case $1 in
    --base) base=${2:?--base names debian, debootstrap or an image} && shift ;;
    --archive) archive=${2:?--archive names a file} && shift ;;
    -*) fail "no option $1: there are --base and --archive" ;;
    *) [ -z "$name" ] && name=$1 || fail "one name is enough, $1 is too many" ;;
    esac
    shift
done
version=$(sed -nE 's/^__version__ = "(.*)"$/\1/p' "$tree/liken_audio/__init__.py")
name=${name:-localhost/liken-audio:$version}

# --- the builder -----------------------------------------------------------------------------------------

works() {
    case $1 in
    buildah) command -v buildah >/dev/null ;;
    *) command -v "$1" >/dev/null && "$1" info >/dev/null 2>&1 ;;
    esac
}
builder=${BUILDER:-}
if [ -z "$builder" ]; then
    for each in buildah podman docker; do
        if works "$each"; then
            builder=$each
            break
        fi
    done
fi
[ -n "$builder" ] || fail 'buildah, podman or docker is needed, and none of them works here: apt-get install buildah'
works "$builder" || fail "$builder doesn't work here"

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
scratch=$(mktemp -d "$cache/image.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
tool=("$builder")
build=(build)
if [ "$builder" = buildah ]; then
    # Two builds side by side would each see the other's layers half made.
    exec 8>"$cache/buildah.lock"
    flock 8
    # Apart from the user's own images; the folder of locks is gone with the run. Overlay mounts aren't
    # allowed everywhere; without them each layer is a whole copy.
    storage() { tool=(buildah --root "$cache/buildah-$1" --runroot "$scratch/run" --storage-driver "$1"); }
    storage overlay
    if probe=$("${tool[@]}" from scratch 2>/dev/null) && "${tool[@]}" mount "$probe" >/dev/null 2>&1; then
        "${tool[@]}" rm "$probe" >/dev/null
    else
        storage vfs
    fi
    # No daemon, no user's session, no network of its own: what works in a container too.
    build=(bud --layers --isolation "${BUILDAH_ISOLATION:-chroot}" --network host)
    export TMPDIR=$scratch
fi

# --- the base ----------------------------------------------------------------------------------------------

has_image() { "${tool[@]}" inspect --type image "$1" >/dev/null 2>&1; }

# Debian's own small image is what debootstrap makes without its pages for people.
make_base() {
    [ "$(id -u)" = 0 ] || fail '--base debootstrap needs root'
    command -v debootstrap >/dev/null || fail '--base debootstrap needs debootstrap: apt-get install debootstrap'
    [ "$builder" = buildah ] || fail "--base debootstrap needs buildah, not $builder"
    local root=$scratch/base keys=/usr/share/keyrings/debian-archive-keyring.gpg container mirror
    mirror=$(apt-get indextargets --format '$(REPO_URI)|$(COMPONENT)|$(ORIGIN)|$(CREATED_BY)' 2>/dev/null |
        awk -F '|' '$2 == "main" && $3 ~ /^Debian$/ && $4 == "Packages" && $1 ~ /^https?:/ { print $1; exit }')
    say "  … Debian $release is put together by debootstrap, once: two minutes"
    debootstrap --variant=minbase --keyring="$keys" "$release" "$root" ${mirror:+"$mirror"} >"$scratch/debootstrap.log" 2>&1 || {
        tail -n 5 "$scratch/debootstrap.log" >&2
        fail 'debootstrap failed'
    }
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/tmp/* "$root"/dev/*
    rm -rf "$root"/usr/share/{man,locale,info}/*
    find "$root/usr/share/doc" -type f ! -name copyright -delete
    find "$root/usr/share/doc" -type d -empty -delete
    : >"$root/etc/resolv.conf"
    : >"$root/etc/hostname"
    container=$("${tool[@]}" from scratch)
    "${tool[@]}" add --quiet "$container" "$root" / >/dev/null
    "${tool[@]}" config --cmd bash "$container"
    "${tool[@]}" commit --quiet --rm "$container" "$made_image" >/dev/null
    rm -rf "$root"
}

answers() { timeout 60 "${tool[@]}" pull --quiet "$registry_image" >/dev/null 2>"$scratch/pull.log"; }

case $base in
'')
    base=$registry_image
    if has_image "$made_image"; then
        base=$made_image
    elif ! has_image "$registry_image" && ! answers; then
        say "  … $registry_image can't be had: $(tail -n 1 "$scratch/pull.log")"
        make_base
        base=$made_image
    fi
    ;;
debian) base=$registry_image ;;
debootstrap)
    has_image "$made_image" || make_base
    base=$made_image
    ;;
esac

# --- the image -----------------------------------------------------------------------------------------------

# Layers of builds before are what makes this one quick; of very many of them none is left.
if [ "$builder" = buildah ] && [ "$(du -sm "$cache"/buildah-* | awk '{ n += $1 } END { print n + 0 }')" -gt "$most_megabytes" ]; then
    kept=$("${tool[@]}" images --quiet --no-trunc "$made_image" 2>/dev/null || true)
    "${tool[@]}" images --all --quiet --no-trunc | sort -u | grep -vxF "${kept:-none}" |
        xargs -r "${tool[@]}" rmi --force >/dev/null 2>&1 || true
fi

arguments=(--build-arg "BASE=$base")
for variable in PIP_INDEX_URL PIP_FIND_LINKS; do
    [ -z "${!variable:-}" ] || arguments+=(--build-arg "$variable=${!variable}")
done
# A proxy that opens TLS has an authority of its own, which pip in the build has to know.
if [ -f "${PIP_CERT:-}" ] && [ "$builder" != docker ]; then
    cp "$PIP_CERT" "$scratch/authorities.crt"
    arguments+=(--volume "$scratch/authorities.crt:/run/authorities.crt:ro" --build-arg PIP_CERT=/run/authorities.crt)
fi
if [ -d "${PIP_FIND_LINKS:-}" ] && [ "$builder" != docker ]; then
    arguments+=(--volume "$PIP_FIND_LINKS:$PIP_FIND_LINKS:ro")
fi

say "  … building $name on $base with $builder"
began=$SECONDS
"${tool[@]}" "${build[@]}" "${arguments[@]}" --file "$tree/Containerfile" --tag "$name" "$tree" >"$scratch/build.log" 2>&1 || {
    tail -n 25 "$scratch/build.log" >&2
    fail 'the build failed'
}
size=$("${tool[@]}" images --format '{{.Size}}' "$name" | head -n 1)
say "  ✓ $name: $size, built in $((SECONDS - began)) s"

if [ -n "$archive" ]; then
    rm -f "$archive"
    case $builder in
    buildah) "${tool[@]}" push --quiet "$name" "docker-archive:$archive:$name" ;;
    *) "${tool[@]}" save --output "$archive" "$name" ;;
    esac
    say "  ✓ $archive: $(($(stat -c %s "$archive") / 1000000)) MB"
fi
