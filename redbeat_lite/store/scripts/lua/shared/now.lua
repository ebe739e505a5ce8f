-- The server's time: {seconds, microseconds of the second}, and in epoch ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
