import pathlib
pathlib.Path('/tmp/wdae-fuzz-6l7l2l91/case-365/PWNED').touch()
