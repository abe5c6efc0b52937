#!/bin/sh
# Writes liken_audio/kubelet/generated/ from the .proto files beside this script.
# usage: protos/generate.sh [PYTHON] [FOLDER]  (defaults: python3, the folder in the tree)
# PYTHON needs grpcio-tools and betterproto[compiler]==2.0.0b7: both are in the dev group.
set -eu
protos=$(cd "$(dirname "$0")" && pwd)
python=${1:-python3}
folder=${2:-$protos/../liken_audio/kubelet/generated}
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
# The compiler's plugin lies beside the interpreter of a virtual environment and calls black there.
PATH=$(dirname "$(command -v "$python")"):$PATH
export PATH

rm -rf "$folder"
mkdir -p "$folder"
cd "$protos"
"$python" -m grpc_tools.protoc --proto_path=. --python_betterproto_out="$folder" \
    dra/v1.proto dra/v1beta1.proto health/v1.proto health/v1alpha1.proto pluginregistration.proto
