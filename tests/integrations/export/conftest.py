"""Libraries that are not installed, from folders that variables name."""

import os
import sys

if folders := os.environ.get("BRIMFUL_WEBDATASET"):
    sys.path += folders.split(os.pathsep)
