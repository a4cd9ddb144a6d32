#!/usr/bin/python3 -I
"""A driver as some were written: Python and its standard library."""
import json
import sys


def answer(arguments):
    if arguments[0] == "init":
        return {"status": "Success", "capabilities": {"attach": False}}
    if arguments[0] == "isattached":
        options = json.loads(arguments[1])
        known = options["kubernetes.io/pvOrVolumeName"] and options["kubernetes.io/readwrite"]
        return {"status": "Success", "attached": not known}
    return {"status": "Not supported"}


print(json.dumps(answer(sys.argv[1:])))
