#!/bin/bash
# A driver like most: bash, with jq for the JSON.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
reply() { echo "$1"; exit 0; }
case "$1" in
    init) reply '{"status":"Success","capabilities":{"attach":false}}' ;;
    isattached)
        name=$(jq -r '."kubernetes.io/pvOrVolumeName"' <<<"$2")
        mode=$(jq -r '."kubernetes.io/readwrite"' <<<"$2")
        [ -n "$name" ] && [ -n "$mode" ] && reply '{"status":"Success","attached":false}'
        ;;
esac
reply '{"status":"Not supported"}'
