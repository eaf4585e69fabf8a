# Copies mounted secrets to where their owner alone can read them: sh private-files.sh FROM TO
#
# What Kubernetes mounts belongs to root, and with fsGroup the group may read it: keys that others
# have access to are refused. FROM/FOLDER/FILE becomes TO/FOLDER/FILE; FROM is mounted into no other
# container, and TO is in memory.
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
