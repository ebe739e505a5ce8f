-- Return the counts of the three parts of the schedule at one moment.
-- KEYS: entries state due
return {redis.call('HLEN', entries), redis.call('HLEN', state), redis.call('ZCARD', due)}
