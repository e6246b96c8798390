#!/bin/sh
# What the container runs: `dvi` with the given words. `serve` listens on all addresses, since
# loopback inside a container reaches nobody; so it has no key and no choice about content of its own.
set -eu

if [ "$#" -eq 0 ]; then
    cat <<'HELP'
Serve a model, keep everything in the volume dvi:

  docker run -v dvi:/data IMAGE models fetch smollm2-135m
  docker run -v dvi:/data -p 8000:8000 -e DVI_API_KEY=... IMAGE serve replay.log_content=true

Two things have to be given, the image has no default for them:

  DVI_API_KEY          the key that clients send (several: commas); or a mounted file,
                       serving.api_key_file=/run/secrets/dvi
  replay.log_content   true: prompts and answers are kept in /data, since the draft learns from them;
                       false: nothing is kept, and the draft does not learn

Also: DVI_ADMIN_KEY guards /admin, DVI_REPLAY_URL names a PostgreSQL. A folder of your own configs:
  -v /etc/dvi:/etc/dvi:ro IMAGE serve --config-dir /etc/dvi --config-name prod
All other commands work too: IMAGE doctor, IMAGE adapters list, IMAGE serve --help.
HELP
    exit 0
fi
if [ "$1" = serve ]; then
    shift
    # First, so that a word of yours wins.
    exec dvi serve serving.host=0.0.0.0 "$@"
fi
exec dvi "$@"
