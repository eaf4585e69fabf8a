# Copy mounted secrets to files that only their owner can read: sh private-files.sh FROM TO
#
# Files mounted by Kubernetes belong to root, and with fsGroup the group may read them; dpstream
# rejects keys that others can access. FROM/FOLDER/FILE becomes TO/FOLDER/FILE. FROM is mounted into
# no other container, and TO is in memory.
set -eu
umask 077
for folder in "$1"/*/; do
    name=$(basename "$folder")
    mkdir -p "$2/$name"
    for file in "$folder"*; do
        if [ -f "$file" ]; then
            install -m 0600 "$file" "$2/$name/$(basename "$file")"
        fi
    done
done
