#!/usr/bin/env bash
# Trains on a Cloud TPU slice of several hosts, spot or not, and starts again after preemptions.
#
#   PROJECT=… ZONE=us-west4-a DATA=gs://…/photos RUN=gs://…/runs/mine bash tpu_slice.sh
#
# Every host runs the same command; jaxsr finds the others through the metadata server. DATA and RUN
# are mounted with gcsfuse, for a VM's disk is lost with it.
set -euo pipefail

: "${PROJECT:?the Google Cloud project}" "${ZONE:?such as us-west4-a}"
: "${DATA:?a bucket with pictures, gs://…}" "${RUN:?a bucket folder for the run, gs://…}"
NAME="${NAME:-jaxsr}"
TYPE="${TYPE:-v5litepod-32}"
CHIPS="${CHIPS:-32}"
VERSION="${VERSION:-v2-alpha-tpuv5-lite}"
SOURCE="${SOURCE:-https://github.com/OWNER/jaxsr}"

tpu() {
  gcloud compute tpus tpu-vm "$@" --project="$PROJECT" --zone="$ZONE"
}

ready() {
  [[ "$(tpu describe "$NAME" --format='value(state)' 2>/dev/null)" == READY ]]
}

on_all_hosts() {
  tpu ssh "$NAME" --worker=all --command="$1"
}

mount_command() { # bucket folder, mount point
  local path="${1#gs://}"
  local bucket="${path%%/*}" folder="${path#*/}"
  [[ "$folder" == "$path" ]] && folder=.
  echo "mkdir -p $2 && (mountpoint -q $2 || gcsfuse --implicit-dirs --only-dir $folder $bucket $2)"
}

while true; do
  if ! ready; then
    tpu delete "$NAME" --quiet 2>/dev/null || true # a preempted slice stays until it is deleted
    until tpu create "$NAME" --accelerator-type="$TYPE" --version="$VERSION" --spot; do
      sleep 300 # no capacity now
    done
    on_all_hosts "git clone -q $SOURCE jaxsr && cd jaxsr && python3 -m venv .venv &&
      .venv/bin/pip install -q -e '.[tpu]'"
    on_all_hosts "$(mount_command "$DATA" /tmp/data)"
    on_all_hosts "$(mount_command "$RUN" /tmp/run)"
  fi
  status=0
  on_all_hosts "cd jaxsr && JAXSR_SAY_STOPPED=1 .venv/bin/python -m jaxsr.train \
    --preset super-resolution --mesh $CHIPS --batch $((24 * CHIPS)) --lr-batch 24 \
    --dtype bfloat16 --batch-norm local --data /tmp/data --out /tmp/run --save-every 200 --resume" ||
    status=$?
  case "$status" in
    0) break ;;
    2) exit 2 ;; # an option or the data is wrong: starting again would not help
    *) sleep 60 ;; # preempted, stopped, or a host was lost
  esac
done
tpu delete "$NAME" --quiet
