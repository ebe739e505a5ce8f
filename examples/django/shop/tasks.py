"""Tasks, found by autodiscovery."""

from celery import shared_task


@shared_task
def cleanup() -> None:
    print("removing what nobody needs")


@shared_task
def count_stock() -> None:
    print("counting the stock")


@shared_task
def send_reminder(order: int) -> None:
    print(f"reminding the customer of order {order}")
