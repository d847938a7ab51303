"""Compaction of logs: of each key, only the newest record stays. Mirrors ``LogCleaner``.

One thread cleans the logs whose ``cleanup.policy`` has ``compact``, the dirtiest first; each
replica by itself.

1. *Choose*: the part from the checkpointed offset to the active segment, no further than the high
   watermark of the checkpoint, open transactions and ``min.compaction.lag.ms``.
2. *Map*: read this part, and note the newest offset of each key. When the memory for keys is used
   up, the part ends there.
3. *Copy*: copy all segments before that end, from the first one on, without the records that have a
   newer one. Batches keep their offsets, sequence numbers, leader epochs and codecs; the last batch
   of each live producer stays, even without records. A tombstone gets a horizon,
   ``delete.retention.ms`` from now, and goes in a cleaning after it. The CRC of every batch is
   checked before; damage is reported as the scrubber does it.
4. *Replace*, under the lock of the log, if the log was not truncated and still has the segments:
   ``.cleaned`` files become ``.swap``, the old ones ``.deleted``, then the copy gets its name. A
   start after a crash completes this. Before the first copy of a log, the checkpoint names it: from
   then on there may be gaps between its segments.
5. Write up to where the log is clean. A truncation below that lowers it.

Until step 4 the log is as before, so a truncation, a deletion or retention need not wait for the
cleaner. What must not see a log change (a move between directories) pauses it.
"""
