#!/bin/sh
# Generates the Python code of the contract beside its .proto files.
# With --check it generates elsewhere and fails where the checked-in code differs.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-../.venv/bin/python}
folder=sandbox_adapter/v1

generate() { # OUT
    "$python" -m grpc_tools.protoc --proto_path=. \
        --python_out="$1" --pyi_out="$1" --grpc_python_out="$1" "$folder"/*.proto
}

case ${1:-} in
"")
    # A .proto that went away must not leave its code behind.
    rm -f "$folder"/*_pb2.py "$folder"/*_pb2.pyi "$folder"/*_pb2_grpc.py
    generate .
    ;;
--check)
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    generate "$fresh"
    mkdir -p "$fresh/checked-in"
    cp "$folder"/*_pb2.py "$folder"/*_pb2.pyi "$folder"/*_pb2_grpc.py "$fresh/checked-in/"
    if ! diff -r --brief "$fresh/checked-in" "$fresh/$folder"; then
        echo "the generated code is not what the .proto files give" >&2
        echo "hint: \`make generate\`" >&2
        exit 1
    fi
    ;;
*)
    echo "usage: proto/generate.sh [--check]" >&2
    exit 2
    ;;
esac
