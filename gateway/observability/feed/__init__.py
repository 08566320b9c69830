"""What `/dashboard/feed` tells: a sample of the server's own metrics each second, and the last ten minutes of them.

Each HTTP process makes its own samples, of what all processes have counted, whether or not somebody watches, so that
whoever opens the page sees what was. Nothing here touches a request: samples are read off the values that `/metrics`
shows.
"""
